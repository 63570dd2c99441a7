#!/usr/bin/env bash
# Times the decode loop of two source trees in turn on one CUDA device: A B A B, the same replayed traffic.
#   scripts/compare_revisions.sh TREE_A TREE_B RESULTS    TARGET, BATCHES, MODES, TURNS, FLAGS as needed
set -euo pipefail
a=$(realpath "$1") b=$(realpath "$2") results=$3
target=${TARGET:-shape:qwen3-1.7b}
mkdir -p "$results"
for turn in $(seq "${TURNS:-2}"); do
  for tree in "$a" "$b"; do
    name=$([ "$tree" = "$a" ] && echo a || echo b)$turn-${target#shape:}
    (cd "$tree" && DSBENCH_HOME=$results/home python3 -m dsbench sweep --target "$target" \
      --trace profiles/smollm2-135m/trace.parquet --cost "profiles/${target/:/-}/cost/nvidia-h200.json" \
      --mode "${MODES:-none,static,compact}" --batch "${BATCHES:-1,8,64,256}" --workload chat --max-tokens 64 \
      --repeats "${REPEATS:-2}" ${FLAGS:-} --out "$results/$name" >"$results/$name.txt" 2>"$results/$name.log") ||
      { tail -5 "$results/$name.log"; exit 1; }
    echo "== $name: $SECONDS s"
    python3 - "$results/$name/summary.csv" <<'PY'
import csv, sys
for row in csv.DictReader(open(sys.argv[1])):
    print(row["batch"], row["mode"], *(f"{name}={float(row[name] or 'nan'):.4g}" for name in ("throughput", "tau", "window", "idle_share")), row["flags"][:60])
PY
  done
done
