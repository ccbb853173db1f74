#!/usr/bin/env bash
# What a plan for GPUs says that nobody asked for, and what is refused there: plans.sh TESSERA PLUGINS
set -euo pipefail
tessera=$1 plugins=$2
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
"$tessera" synth qwen35moe "$folder/m.gguf" --preset tiny --types q8_0 >"$folder/log" 2>&1

plan() { "$tessera" plan "$folder/m.gguf" --gpu-plugins "$plugins" --log-level error "$@" 2>&1; }
expect() { # WHAT TEXT ARGUMENTS...
  local what=$1 text=$2
  shift 2
  plan "$@" >"$folder/out" || true
  if ! tr -s '\n ' ' ' <"$folder/out" | grep -qF -- "$text"; then
    echo "$what: no \"$text\" in" && cat "$folder/out" && exit 1
  fi
}

export EMULATED_GPUS=2
expect "GPUs alone" "prefill chunks of 2048" --target-devices cuda:0
expect "pieces of a GPU" '"piece_rows": 2048' --target-devices cuda:0,cuda:1 --json
expect "a GPU and a CPU" "prefill chunks of 256" --target-devices cuda:0,cpu
expect "what was asked for" "prefill chunks of 64" --target-devices cuda:0 --prefill-chunk 64
expect "threads" '"threads": 3' --target-devices cuda:0 --threads 3 --json
expect "turns" "0-0 +embedding, 2-2 16 cuda:1 1 1-1, 3-3 +head" --target-devices cuda:0,cuda:1 --target-turns 2
expect "no turns by themselves" '"turns": 1' --target-devices cuda:0,cuda:1 --json
expect "turns with a CPU" "cpu takes no turns" --target-devices cuda:0,cpu --target-turns 2
expect "f32" "GPUs compute in the file's own formats" --target-devices cuda:0 --compute f32
expect "delta" "the option is for CPUs" --target-devices cuda:0 --delta-form chunked
# Of one GPU, a chunk has as many rows as hide what crosses, and as a sequence has: 4096 here.
expect "all experts cross" "prefill chunks of 4096" --target-devices cuda:0 --expert-resident 0%
expect "a tenth crosses" "prefill chunks of 2048" --target-devices cuda:0 --expert-resident 90%
expect "nothing crosses" "prefill chunks of 2048" --target-devices cuda:0 --expert-resident 0% --expert-stream off
# Larger chunks give way before experts do.
plan --target-devices cuda:0 --json --prefill-chunk 256 >"$folder/least"
bytes=$(grep "\"total_bytes\"" "$folder/least" | sed -n 2p | tr -dc 0-9)
expect "little memory" "prefill chunks of 256" --target-devices cuda:0 --ctx 4096 --budget "cuda:0=$bytes"
