# tessera_fuzzers(ROOM)
#
# Builds each src/ROOM/**/X_fuzz.cc into the libFuzzer program X_fuzz and adds the test fuzz.X,
# which runs it for TESSERA_FUZZ_SECONDS on the committed corpus tests/fuzz/X. What the run finds
# stays in the build tree: new inputs under corpus/X, failures under findings/X.
set(TESSERA_FUZZ_SECONDS 10 CACHE STRING "How long the tests run each fuzzer")

# All of them, and nothing else.
add_custom_target(fuzzers)

function(tessera_fuzzers room)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${room}/*_fuzz.cc)
  foreach(source ${sources})
    cmake_path(GET source STEM program)
    string(REGEX REPLACE "_fuzz$" "" name ${program})
    add_executable(${program} ${source})
    add_dependencies(fuzzers ${program})
    target_link_libraries(${program} PRIVATE tessera_${room})
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
endfunction()
