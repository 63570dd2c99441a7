#!/usr/bin/env bash
# Builds, checks, trains and measures on a machine with a CUDA device and a torch of its own; needs nothing installed.
#   scripts/gpu.sh STAGE...    stages: model check smoke train calibrate evaluate time selftest
# GGUF: the model file, or a folder of its parts in order. WORK: scratch. RESULTS: what is to be kept.
set -euo pipefail
cd "$(dirname "$0")/.."
WORK=${WORK:-/tmp/dsbench-work} RESULTS=${RESULTS:-$WORK/results} PYTHON=${PYTHON:-python3}
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
stage_train() {
  rm -rf "$WORK/drafter"
  dsbench train --out "$WORK/drafter" --data "$WORK/data" --seconds "${SECONDS_TO_TRAIN:-300}" ${TRAIN_FLAGS:-} \
    2>"$RESULTS/train.log" >"$RESULTS/card.json" || { tail -40 "$RESULTS/train.log"; return 1; }
  tail -3 "$RESULTS/train.log"
  cp -r "$WORK/drafter/." "$RESULTS/"
}
stage_calibrate() {
  local drafter=${DRAFTER:-$WORK/drafter}
  dsbench calibrate --drafter "$drafter" --workload "${SETS:-math,chat,poetry}" --prompts "${PROMPTS:-60}" --batch 90 \
    --max-tokens 256 --out "$RESULTS/calibration.json" >"$RESULTS/calibration.txt" 2>"$RESULTS/calibration.log" \
    || { tail -40 "$RESULTS/calibration.log"; return 1; }
  grep -A99 'tau \[' "$RESULTS/calibration.txt"
  cp "$RESULTS/calibration.json" "$drafter/"
}
stage_selftest() {
  dsbench selftest --prompts 32 --max-tokens 48 --batch 1,3,8 --drafter "${DRAFTER:-profiles/smollm2-135m/dspark}" \
    | tee "$RESULTS/selftest.txt"
}
stage_evaluate() {
  local drafter=${DRAFTER:-$WORK/drafter}
  dsbench calibrate --drafter "$drafter" --workload gsm8k,arena-hard,ifeval-poetry --prompts 60 --batch 90 --max-tokens 256 \
    --events coupled@0,coupled@1,residual@1 --out "$WORK/evaluation.json" >"$RESULTS/evaluation.txt" 2>"$WORK/evaluation.log" \
    || { tail -40 "$WORK/evaluation.log"; return 1; }
  grep -A99 'tau \[' "$RESULTS/evaluation.txt"
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
for stage in "$@"; do
  begin=$SECONDS
  "stage_$stage"
  echo "== $stage: $((SECONDS - begin)) s"
done
