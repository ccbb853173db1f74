# The fuzzers, and nothing else: each src/**/X_fuzz.cc becomes the libFuzzer program X_fuzz and the
# test fuzz.X, which runs it for TESSERA_FUZZ_SECONDS on the committed corpus tests/fuzz/X. What the
# run finds stays in the build tree: new inputs under corpus/X, failures under findings/X.
#
# Built are the sources that they reach, half of all and no kernel among them: what a source
# includes, and of A.h what lies beside it in A.cc and A_*.cc. Rooms where one header has sources of
# other names are taken whole.
set(TESSERA_FUZZ_SECONDS 10 CACHE STRING "How long the tests run each fuzzer")

# RESULT: the sources among what FILES and what they include reach; paths are from src/.
function(tessera_reached result)
  set(todo ${ARGN})
  set(seen)
  while(todo)
    list(POP_FRONT todo file)
    if(file IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${file})
    file(STRINGS src/${file} lines REGEX "^#include \"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
      if(EXISTS ${CMAKE_SOURCE_DIR}/src/${included})
        string(REGEX REPLACE "\\.h$" "" stem ${included})
        file(GLOB beside RELATIVE ${CMAKE_SOURCE_DIR}/src CONFIGURE_DEPENDS
             src/${stem}.cc src/${stem}_*.cc)
        list(FILTER beside EXCLUDE REGEX "_(test|fuzz)\\.cc$")
        list(APPEND todo ${included} ${beside})
      endif()
    endforeach()
  endwhile()
  list(TRANSFORM seen PREPEND src/)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${seen})
  list(FILTER seen INCLUDE REGEX "\\.cc$")
  set(${result} ${seen} PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE fuzzers RELATIVE ${CMAKE_SOURCE_DIR}/src CONFIGURE_DEPENDS src/*_fuzz.cc)
file(GLOB_RECURSE whole RELATIVE ${CMAKE_SOURCE_DIR}/src CONFIGURE_DEPENDS
     src/quant/*.cc src/gguf/*.cc src/model/*.cc src/text/*.cc)
list(FILTER whole EXCLUDE REGEX "_test\\.cc$")
tessera_reached(sources ${fuzzers} ${whole})
list(FILTER sources EXCLUDE REGEX "_fuzz\\.cc$")
add_library(fuzzed STATIC ${sources})
# What is reached of a room is compiled as one source (precompiled.cmake says what that asks for).
set_target_properties(fuzzed PROPERTIES UNITY_BUILD ${TESSERA_JOINED} UNITY_BUILD_MODE GROUP)
foreach(source ${sources})
  if(NOT source MATCHES "/readers/")
    string(REGEX REPLACE "^src/([^/]+)/.*" "\\1" room ${source})
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${room})
  endif()
endforeach()
target_include_directories(fuzzed PUBLIC src)
target_link_libraries(fuzzed PUBLIC fmt::fmt Threads::Threads nlohmann_json::nlohmann_json spdlog::spdlog
                                    OpenSSL::Crypto PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::XXHASH)

foreach(source ${fuzzers})
  cmake_path(GET source STEM program)
  string(REGEX REPLACE "_fuzz$" "" name ${program})
  add_executable(${program} src/${source})
  target_link_libraries(${program} PRIVATE fuzzed)
  target_link_options(${program} PRIVATE -fsanitize=fuzzer)
  target_compile_definitions(${program} PRIVATE TESSERA_SOURCE_DIR="${CMAKE_SOURCE_DIR}")

  set(found ${CMAKE_BINARY_DIR}/corpus/${name})
  set(findings ${CMAKE_BINARY_DIR}/findings/${name})
  file(MAKE_DIRECTORY ${found} ${findings})
  set(seeds ${CMAKE_SOURCE_DIR}/tests/fuzz/${name})
  set(dictionary)
  if(EXISTS ${seeds}.dict)
    set(dictionary -dict=${seeds}.dict)
  endif()
  add_test(NAME fuzz.${name}
           COMMAND ${program} -max_total_time=${TESSERA_FUZZ_SECONDS} -timeout=5
                   -rss_limit_mb=2048 -print_final_stats=1 ${dictionary}
                   -artifact_prefix=${findings}/ ${found} ${seeds})
  set_tests_properties(fuzz.${name} PROPERTIES TIMEOUT 300)
endforeach()
