# Every target does its own set-up; `make demo` and `make test` start from a clean clone.
BIN := .venv/bin
export DSBENCH_HOME ?= $(CURDIR)/.cache
export TOKENIZERS_PARALLELISM := false
RUN ?= runs/demo

.PHONY: demo test check setup

setup:
	@scripts/setup.sh

# Profile, sweep four arms over four batch sizes on mixed traffic, draw. On two quiet CPU cores, 8 to 9 minutes.
demo: setup
	@$(BIN)/dsbench models pull smollm2-135m >/dev/null
	@rm -rf $(RUN)
	$(BIN)/dsbench profile-cost --batch 1,4,8,16 --passes 2
	$(BIN)/dsbench sweep --mode none,static,compact,cap-accept --batch 1,4,8,16 \
	  --workload mix:math=1,chat=1,poetry=1 --requests 6 --max-tokens 28 --repeats 2 --out $(RUN)
	$(BIN)/dsbench plot $(RUN)
	$(BIN)/dsbench report $(RUN)

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
