#!/bin/sh
# tessera serve on a synthetic model until standard input ends: real_server.sh TESSERA KEY
set -u
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
"$1" synth qwen35moe "$dir/tiny.gguf" --set context_length=32768 || exit 1
"$1" serve "$dir/tiny.gguf" --port 0 --parallel 2 --ctx 32768 --api-key "$2" 2>&1 &
pid=$!
cat >/dev/null
kill -TERM $pid
wait $pid
