#!/usr/bin/env bash
# Builds, checks, trains and measures on a machine with a CUDA device and a torch of its own; needs nothing installed.
#   scripts/gpu.sh STAGE...    stages: model check smoke data train calibrate drafters time selftest kernels
#                                     costs record sweep trace sanitize
# GGUF: the model file, or a folder of its parts in order. WORK: scratch. RESULTS: what is to be kept.
set -euo pipefail
cd "$(dirname "$0")/.."
WORK=${WORK:-/tmp/dsbench-work} RESULTS=${RESULTS:-$WORK/results} PYTHON=${PYTHON:-python3}
SETS=${SETS:-math,chat,poetry,gsm8k,arena-hard,ifeval-poetry}
export DSBENCH_HOME=$WORK/home PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$WORK" "$RESULTS" "$DSBENCH_HOME"
dsbench() { "$PYTHON" -m dsbench "$@"; }

stage_model() {
  local file=$GGUF
  if [ -d "$GGUF" ]; then file=$WORK/model.gguf; cat "$GGUF"/part* >"$file"; fi
  dsbench models pull smollm2-135m --gguf "$file"
}
stage_check() {
  "$PYTHON" -m pytest -m gpu -p no:cacheprovider -o filterwarnings= -x 2>&1 | tail -30
}
stage_smoke() {
  rm -rf "$WORK/smoke"
  dsbench train --out "$WORK/smoke" --seconds 8 --sequences 1500 2>&1 | tail -25
}
stage_data() {
  dsbench train --data "$WORK/data.npz" --data-only ${DATA_FLAGS:-} --log "$RESULTS/data.log" >"$WORK/data.json" 2>"$WORK/data.err" \
    || { tail -40 "$WORK/data.err"; return 1; }
  tail -2 "$WORK/data.err"
  split -b 15m -d -a 1 "$WORK/data.npz" "$RESULTS/data.npz."
}
# NAME and TRAIN_FLAGS: one drafter of several
stage_train() {
  local out=$WORK/${NAME:-dspark}
  rm -rf "$out"
  dsbench train --out "$out" --data "$WORK/data.npz" --seconds "${SECONDS_TO_TRAIN:-300}" ${TRAIN_FLAGS:-} \
    --log "$RESULTS/${NAME:-dspark}.log" >/dev/null 2>"$WORK/${NAME:-dspark}.err" || { tail -40 "$WORK/${NAME:-dspark}.err"; return 1; }
  tail -2 "$WORK/${NAME:-dspark}.err"
  (cd "$WORK" && tar cf "$RESULTS/${NAME:-dspark}.tar" "${NAME:-dspark}")
  (cd "$RESULTS" && split -b 15m -d -a 1 "${NAME:-dspark}.tar" "${NAME:-dspark}.tar." && rm "${NAME:-dspark}.tar")
}
stage_calibrate() {
  local drafter=${DRAFTER:-$WORK/dspark}
  dsbench calibrate --drafter "$drafter" --workload "$SETS" --prompts "${PROMPTS:-60}" --batch "${BATCH:-180}" \
    --max-tokens 256 --out "$WORK/calibration.json" >"$RESULTS/calibration.txt" 2>"$WORK/calibration.err" \
    || { tail -40 "$WORK/calibration.err"; return 1; }
  (cd "$WORK" && tar czf "$RESULTS/calibration.tgz" calibration*.json calibration*.csv calibration*.parquet)
  grep -A99 'tau \[' "$RESULTS/calibration.txt"
}
# DRAFTERS: folders, the one to pair first
stage_drafters() {
  dsbench drafters $DRAFTERS --workload "$SETS" --prompts "${PROMPTS:-60}" --batch "${BATCH:-180}" --max-tokens 256 \
    --events "${EVENTS:-coupled@0,residual@1,coupled@1}" --out "$WORK/compare-${NAME:-all}" ${COMPARE_FLAGS:-} \
    >"$RESULTS/compare-${NAME:-all}.txt" 2>"$WORK/compare.err" || { tail -40 "$WORK/compare.err"; return 1; }
  cp "$WORK/compare-${NAME:-all}/drafters.json" "$RESULTS/compare-${NAME:-all}.json"
  head -c 5000 "$RESULTS/compare-${NAME:-all}.txt"
}
stage_selftest() {
  dsbench selftest --prompts 32 --max-tokens 48 --batch 1,3,8 --drafter "${DRAFTER:-profiles/smollm2-135m/dspark}" \
    | tee "$RESULTS/selftest.txt"
  dsbench selftest --numerics exact --prompts 32 --max-tokens 128 --batch 1,3,8,64 \
    --drafter "${DRAFTER:-profiles/smollm2-135m/dspark}" | tee "$RESULTS/selftest-exact.txt"
}
stage_time() { # DRAFTERS: folders, the first is paired; a few counts are needed to have a table at all
  local folders=(${DRAFTERS:-profiles/smollm2-135m/dspark})
  rm -rf "$WORK/time"
  dsbench drafters "${folders[@]}" --time "${TIME_BATCHES:-1,16,64}" --workload math --prompts 2 --max-tokens 8 \
    --events coupled@1 --batch 2 --out "$WORK/time" >"$RESULTS/time.txt" 2>"$RESULTS/time.log" \
    || { tail -40 "$RESULTS/time.log"; return 1; }
  cp "$WORK/time/drafters.json" "$RESULTS/time.json"
  cp "$WORK/time/drafters.csv" "$RESULTS/time.csv"
  grep -E 'timed|captured' "$RESULTS/time.log" || true
  grep -A99 '^milliseconds' "$RESULTS/time.txt"
}
stage_kernels() { # KERNEL_FLAGS: e.g. --quick, --op paged_attention; the file holds what was measured before a failure
  dsbench bench-kernels --out "$RESULTS/kernels.json" ${KERNEL_FLAGS:-} >"$RESULTS/kernels.txt" 2>"$RESULTS/kernels.log" \
    || { tail -40 "$RESULTS/kernels.txt" "$RESULTS/kernels.log"; return 1; }
  head -c 10000 "$RESULTS/kernels.txt"
}
# COST_TARGETS, COST_CONTEXTS: what to make tables of
stage_costs() {
  local target name
  for target in ${COST_TARGETS:-smollm2-135m shape:qwen3-1.7b shape:qwen3-8b}; do
    name=${target#shape:}
    dsbench profile-cost --target "$target" --batch "${COST_BATCHES:-1:256:x2}" --context "${COST_CONTEXTS:-64,512,1085}" \
      --passes "${COST_PASSES:-2}" --out "$RESULTS/cost-$name.json" >"$RESULTS/cost-$name.txt" 2>"$WORK/cost-$name.log" \
      || { tail -40 "$WORK/cost-$name.log"; return 1; }
    cat "$RESULTS/cost-$name.txt"
  done
}
stage_record() { # the acceptance that shape targets replay
  dsbench record-trace --workload math,chat,poetry --prompts "${PROMPTS:-64}" --max-tokens "${TOKENS:-96}" --batch 192 \
    --out "$WORK/trace.draft" 2>"$WORK/record.log" || { tail -40 "$WORK/record.log"; return 1; }
  mv "$WORK/trace.draft" "$RESULTS/trace.parquet"
}
# NAME: of the run; SWEEP_TARGET, SWEEP_MODES, SWEEP_BATCHES, SWEEP_SETS, SWEEP_FLAGS. Rounds are too many to be kept. After
# SWEEP_SECONDS it is stopped: what it has is kept, and a stage of the same name goes on with it.
stage_sweep() {
  local run=$WORK/run-${NAME:-sweep} resume= status=0
  if [ -d "$run" ]; then resume=--resume; fi
  timeout -s INT "${SWEEP_SECONDS:-3600}" "$PYTHON" -m dsbench sweep --target "${SWEEP_TARGET:-smollm2-135m}" --mode "${SWEEP_MODES:-none,static:1,static:2,static:3,static,compact}" \
    --batch "${SWEEP_BATCHES:-1,8,32,64,128,256}" --workload "${SWEEP_SETS:-math,chat,poetry}" --out "$run" $resume ${SWEEP_FLAGS:-} \
    >"$RESULTS/run-${NAME:-sweep}.txt" 2>"$RESULTS/run-${NAME:-sweep}.log" || status=$?
  if [ "$status" -ne 0 ]; then tail -5 "$RESULTS/run-${NAME:-sweep}.log"; fi
  [ -d "$run" ] || return 1
  dsbench plot "$run" --out "$WORK/pictures-${NAME:-sweep}" >>"$RESULTS/run-${NAME:-sweep}.log" 2>&1 || true
  tar czf "$RESULTS/run-${NAME:-sweep}.tgz" -C "$WORK" --exclude='rounds*.parquet' --exclude='*.svg' \
    "run-${NAME:-sweep}" $([ -d "$WORK/pictures-${NAME:-sweep}" ] && echo "pictures-${NAME:-sweep}")
  [ "$status" -eq 0 ] || [ "$status" -eq 124 ]
}
# TRACE_TARGETS, TRACE_BATCHES, TRACE_FLAGS; shape targets replay the trace of stage record if it is there
stage_trace() {
  local target batch name replay
  for target in ${TRACE_TARGETS:-smollm2-135m shape:qwen3-8b}; do
    replay=
    if [ "$target" != "${target#shape:}" ] && [ -e "$RESULTS/trace.parquet" ]; then replay="--trace $RESULTS/trace.parquet"; fi
    for batch in ${TRACE_BATCHES:-1 64}; do
      name=timeline-${target#shape:}-$batch
      dsbench trace --target "$target" --mode "${TRACE_MODE:-static}" --batch "$batch" $replay ${TRACE_FLAGS:-} \
        --out "$RESULTS/$name" >"$RESULTS/$name.txt" 2>"$WORK/$name.log" || { tail -20 "$WORK/$name.log"; return 1; }
      cat "$RESULTS/$name.txt"
    done
  done
}
stage_sanitize() { # a tiny model under the memory checker: drafts, plans, packed rows, attention, verdicts, commits
  compute-sanitizer --tool memcheck --error-exitcode 9 "$PYTHON" -m pytest -m gpu -q -p no:cacheprovider -o filterwarnings= \
    tests/runtime/loop/test_gpu_overlap.py -k "compact-0.8" >"$RESULTS/sanitize.txt" 2>&1 || { tail -20 "$RESULTS/sanitize.txt"; return 1; }
  tail -3 "$RESULTS/sanitize.txt"
}
for stage in "$@"; do
  begin=$SECONDS
  "stage_$stage"
  echo "== $stage: $((SECONDS - begin)) s"
done
