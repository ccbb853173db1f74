#!/usr/bin/env bash
# Whether a plug-in exports its entry alone, and is opened: plugin_opens.sh TESSERA PLUGIN VENDOR
set -euo pipefail
exported=$(nm --dynamic --defined-only --format=just-symbols "$2")
if [ "$exported" != tessera_gpu_plugin ]; then
  echo "exported: $exported"
  exit 1
fi
# What a library that cannot be opened is told by has the file's name.
"$1" devices --gpu-plugins "$(dirname "$2")" | tee /dev/stderr | grep "^$3" | grep -qv "libtessera-$3.so"
