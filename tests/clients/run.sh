#!/bin/sh
# Runs a file of OpenAI client tests against a server that runs until its standard input ends:
#   run.sh TEST SERVER
# Exit status 77: skipped, because node, npm or the package registry is missing.
set -u
file=${1:?usage: run.sh TEST SERVER [ARGUMENT]...}
shift
cd "$(dirname "$0")" || exit 1

skip() {
  echo "skipped: $1"
  exit 77
}
command -v node >/dev/null || skip "node is not installed"
command -v npm >/dev/null || skip "npm is not installed"
if [ ! -d node_modules/openai ]; then
  npm ci --no-audit --no-fund --silent || skip "npm ci failed"
fi

dir=$(mktemp -d)
mkfifo "$dir/in"
"$@" test-key <"$dir/in" >"$dir/out" &
pid=$!
# The server runs for as long as this end is open.
exec 3>"$dir/in"
trap 'exec 3>&-; wait $pid; rm -r "$dir"' EXIT
port=
for _ in $(seq 100); do
  port=$(sed -n 's|^listening on ||p; s|.* is ready on http://127.0.0.1:||p' "$dir/out")
  [ -n "$port" ] && break
  sleep 0.1
done
[ -n "$port" ] || { echo "the server did not start"; exit 1; }
TESSERA_BASE_URL="http://127.0.0.1:$port/v1" TESSERA_API_KEY=test-key node --test "$file"
