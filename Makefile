# Every target does its own set-up; `make demo` and `make test` start from a clean clone.
BIN := .venv/bin
export DSBENCH_HOME ?= $(CURDIR)/.cache
export TOKENIZERS_PARALLELISM := false
RUN ?= runs/demo

.PHONY: demo test check setup

setup:
	@scripts/setup.sh

# What an H200 would do, by the tables that ship; then this machine: profile, sweep four arms, draw. At most 5 minutes
# on two CPU cores: what does not fit is left out and said. Without a usable cost table compact stays out.
demo: setup
	@$(BIN)/dsbench models pull smollm2-135m >/dev/null
	@rm -rf $(RUN) $(RUN)-h200
	@echo "1. SIMULATED: a Qwen3-8B-sized target on an H200, by the shipped cost table and SmolLM2's recorded acceptance"
	@$(BIN)/dsbench simulate --trace profiles/smollm2-135m/trace.parquet --cost profiles/shape-qwen3-8b/cost/nvidia-h200.json \
	  --mode none,static,static:2,compact --batch 1,16,256 --workload chat --requests 32 --out $(RUN)-h200 >/dev/null
	@$(BIN)/dsbench show $(RUN)-h200 --short
	@echo "2. This machine: what a step costs"
	@modes=none,static,static:2,compact; $(BIN)/dsbench profile-cost --batch 1,4,16 --passes 2 --within 60s || \
	  { [ $$? -eq 6 ] && modes=none,static,static:2; } && \
	echo "3. This machine, measured" && \
	$(BIN)/dsbench sweep --mode $$modes --batch 1,4,16 --workload mix:math=1,chat=1,poetry=1 --requests 6 \
	  --max-tokens 24 --repeats 2 --within 140s --out $(RUN) >/dev/null
	@$(BIN)/dsbench plot $(RUN) >/dev/null
	@$(BIN)/dsbench show $(RUN) --short

# Unmarked tests first, then the short ones on the real model.
test: setup
	$(BIN)/pytest -m "not slow and not gpu" -n auto --dist loadfile
	@$(BIN)/dsbench models pull smollm2-135m >/dev/null
	$(BIN)/pytest -m slow -n auto --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory test
