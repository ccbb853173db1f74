# tessera_precompile(TARGET) and tessera_precompile_test(TARGET): what makes a library and a test
# program compile sooner.
#
# Sources of one target are compiled eight at a time as one (TESSERA_JOINED), in a third of the time:
# headers cost more than what they are included for. So names in anonymous namespaces are unique
# within a room; a source that cannot keep to that, or includes what the others cannot, stands
# alone (ALONE of tessera_room). Who edits one file over and over builds with -DTESSERA_JOINED=OFF.
#
# Large headers that many files read are parsed once for the libraries and once for the tests. No
# source may rely on this: builds with ccache, which would then find nothing, do without.
#
# Tests are optimised less: they end as soon, and compile in three quarters of the time.
option(TESSERA_JOINED "Compile eight sources of a library as one" ON)

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

function(tessera_precompile target)
  target_precompile_headers(${target} REUSE_FROM tessera_headers)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TESSERA_JOINED})
endfunction()

function(tessera_precompile_test target)
  target_precompile_headers(${target} REUSE_FROM tessera_test_headers)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TESSERA_JOINED})
  target_compile_options(${target} PRIVATE ${TESSERA_TEST_FLAGS})
endfunction()
