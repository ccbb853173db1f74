#!/usr/bin/env bash
# Sources of a room are compiled several as one (cmake/precompiled.cmake). Functions of one name, in
# the anonymous namespaces of two of them or in one and in a header of the room, would then be
# overloads of each other: where their parameters differ that compiles, and a call may find the
# other one. So no two sources of a room, and no two of its tests, may have them.
#   joined_names.sh FOLDER...     # each one room, or one program of tests
set -euo pipefail
export LC_ALL=C

# NAME FILE for each function that begins a line: of sources between "namespace {" and its end.
functions() {
  awk '
    FNR == 1 { inside = FILENAME ~ /\.h$/ }
    /^namespace \{$/ { inside = 1 }
    /^\}/ && FILENAME !~ /\.h$/ && (/\/\/ namespace$/ || /^\}$/ && before !~ /^ /) { inside = 0 }
    { before = $0; sub(/^\[\[[a-z]+\]\] /, "") ; sub(/^inline /, "") }
    inside && /^[A-Za-z_].*\(/ && !/^(using|struct|class|enum|template|namespace|static_assert|return|TEST|INSTANTIATE)[^a-z]/ &&
      match($0, /[A-Za-z_0-9]+\(/) {
        name = substr($0, RSTART, RLENGTH - 1)
        if (substr($0, 1, RSTART) !~ /=/ && $0 !~ "::" name "\\(" && name !~ /^(TEST|INSTANTIATE|CHECK|TESSERA)_?/) print name, FILENAME
      }' "$@" | sort -u
}

# Of a folder the files of one kind. Kernels, programs, what stands alone (CMakeLists.txt) and a GPU
# plug-in, which is a folder of its own here, are not compiled with the rest of their room.
files_of() { # FOLDER tests|sources|headers
  find "$1" -name node_modules -prune -o -name '*.cc' -print -o -name '*.h' -print |
    grep -vE '/main\.cc$|_fuzz\.cc$|_(portable|avx2|avx512)\.cc$|/readers/|/toml_file\.cc$|/emulator/|/(fake|turning)_worker\.cc$' |
    if [[ $1 = */gpu/plugin ]]; then cat; else grep -v '/gpu/plugin/' || true; fi |
    case $2 in
      tests) grep -E '_test\.cc$' ;;
      sources) grep -E '\.cc$' | grep -vE '_test\.cc$' ;;
      headers) grep -E '\.h$' ;;
    esac | sort || true
}

failed=0 seen=0
for folder in "$@"; do
  mapfile -t headers < <(files_of "$folder" headers)
  for kind in sources tests; do
    mapfile -t files < <(files_of "$folder" $kind)
    seen=$((seen + ${#files[@]}))
    [ ${#files[@]} -gt 0 ] || continue
    own=$(functions "${files[@]}")
    declared=$([ ${#headers[@]} -eq 0 ] || functions "${headers[@]}")
    while read -r name; do
      echo "$name() is in anonymous namespaces of$(awk -v n="$name" '$1 == n {printf " %s", $2}' <<<"$own")"
      failed=1
    done < <(awk '{print $1}' <<<"$own" | uniq -d)
    while read -r name; do
      echo "$name() is in an anonymous namespace of$(awk -v n="$name" '$1 == n {printf " %s", $2}' <<<"$own") and declared in$(awk -v n="$name" '$1 == n {printf " %s", $2}' <<<"$declared")"
      failed=1
    done < <(comm -12 <(awk '{print $1}' <<<"$own" | sort -u) <(awk '{print $1}' <<<"$declared" | sort -u))
  done
done
if [ "$seen" -eq 0 ]; then
  echo "no sources in $*"
  exit 1
fi
exit $failed
