#!/usr/bin/env bash
# Experts at a worker on a GPU, beside layers on a CPU and on another GPU: expert_worker.sh TESSERA PLUGINS
# The answers are those of the CPU alone: the model is small, and its rounding changes no token.
set -euo pipefail
tessera=$1 plugins=$2
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
export EMULATED_GPUS=2
"$tessera" synth qwen35moe "$folder/m.gguf" --preset tiny --types q4_k_m >"$folder/log" 2>&1

answer() { "$tessera" run "$folder/m.gguf" -p "abc abc" --temp 0 -n 12 --gpu-plugins "$plugins" --log-level error "$@"; }
answer >"$folder/expected" 2>"$folder/log"
for devices in cpu cuda:0; do
  for required in "" --expert-ipc-required; do
    if ! answer --target-devices "$devices" --spawn-worker experts,device=cuda:1 --expert-resident 0% \
      ${required:+"$required"} >"$folder/got" 2>"$folder/log" ||
      ! cmp -s "$folder/got" "$folder/expected"; then
      echo "$devices, experts at cuda:1 $required: another answer" && cat "$folder/got" "$folder/log" && exit 1
    fi
  done
done
# The plan says what it holds; a GPU is one process's.
"$tessera" plan "$folder/m.gguf" --target-devices cpu --spawn-worker experts,device=cuda:1 --expert-resident 50% \
  --gpu-plugins "$plugins" --log-level error >"$folder/plan" 2>&1
grep -q '^worker:0 .*experts .*16' "$folder/plan" || { echo "no worker of 16 experts:" && cat "$folder/plan" && exit 1; }
if "$tessera" plan "$folder/m.gguf" --target-devices cuda:1 --spawn-worker experts,device=cuda:1 --expert-resident 50% \
  --gpu-plugins "$plugins" --log-level error >"$folder/plan" 2>&1; then
  echo "cuda:1 may be named twice:" && cat "$folder/plan" && exit 1
fi
grep -q "cuda:1 is named twice" "$folder/plan"

# A GPU that fails in the midst of an answer: where the worker is required, the request fails and says why; else the CPU
# computes what the worker does not.
faulty() { EMULATED_FAULT=1:5 answer --target-devices cpu --spawn-worker experts,device=cuda:1 --expert-resident 0% --log-level info "$@"; }
if faulty --expert-ipc-required >"$folder/got" 2>"$folder/log"; then
  echo "a required worker may be lost:" && cat "$folder/got" "$folder/log" && exit 1
fi
for said in cudaErrorIllegalAddress "worker:0"; do
  grep -q "$said" "$folder/log" || { echo "a lost GPU, nothing of $said:" && cat "$folder/log" && exit 1; }
done
if ! faulty >"$folder/got" 2>"$folder/log" || ! cmp -s "$folder/got" "$folder/expected"; then
  echo "a lost GPU changes the answer:" && cat "$folder/got" "$folder/log" && exit 1
fi
