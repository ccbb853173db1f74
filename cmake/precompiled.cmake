# tessera_precompile(TARGET) and tessera_precompile_test(TARGET): what makes a library and a test
# program compile sooner.
#
# Sources of one target are compiled eight at a time as one (TESSERA_JOINED), since most of a source's
# time goes into its headers. So a name in an anonymous namespace is of one source of its room, and of
# no header there (tests/joined_names.sh); a source that cannot keep to that, or includes what the
# others cannot, stands alone (ALONE of tessera_room). A type of a header's class that its source
# completes has no members of types in anonymous namespaces: g++ would warn of them in what is
# included. The build of the thread sanitizer compiles each source by itself, and so does who edits
# one over and over: -DTESSERA_JOINED=OFF.
#
# Large headers that many files read are parsed once for the libraries and once for the tests. No
# source may rely on this: builds with ccache, which would then find nothing, do without.
#
# Tests are optimised less: they end as soon, and compile in three quarters of the time.
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

set(TESSERA_LARGE_HEADERS
    <algorithm> <chrono> <functional> <map> <memory> <mutex> <optional> <span> <string>
    <string_view> <thread> <unordered_map> <variant> <vector> <fmt/format.h>
    <nlohmann/json.hpp>)

set(TESSERA_TEST_FLAGS $<$<CONFIG:Release>:-O1>)

function(tessera_precompiled_headers target)
  cmake_parse_arguments(PRE "" "" "LIBS;HEADERS" ${ARGN})
  set(empty ${CMAKE_BINARY_DIR}/${target}.cc)
  file(CONFIGURE OUTPUT ${empty} CONTENT "")
  add_library(${target} OBJECT ${empty})
  target_link_libraries(${target} PRIVATE fmt::fmt nlohmann_json::nlohmann_json ${PRE_LIBS})
  target_precompile_headers(${target} PRIVATE ${TESSERA_LARGE_HEADERS} ${PRE_HEADERS})
endfunction()

tessera_precompiled_headers(tessera_headers)
if(TESSERA_TESTS)
  tessera_precompiled_headers(tessera_test_headers LIBS GTest::gtest HEADERS <gtest/gtest.h>)
  target_compile_options(tessera_test_headers PRIVATE ${TESSERA_TEST_FLAGS})
endif()

function(tessera_join target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TESSERA_JOINED} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

function(tessera_precompile target)
  target_precompile_headers(${target} REUSE_FROM tessera_headers)
  tessera_join(${target})
endfunction()

function(tessera_precompile_test target)
  target_precompile_headers(${target} REUSE_FROM tessera_test_headers)
  tessera_join(${target})
  target_compile_options(${target} PRIVATE ${TESSERA_TEST_FLAGS})
endfunction()
