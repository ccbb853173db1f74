# tessera_room(NAME [ROOMS other...] [LIBS public...] [PRIVATE private...] [ALONE regex])
#
# Builds src/NAME/**.cc into the library tessera_NAME and, when tests are on, src/NAME/**_test.cc
# into the program NAME_test. A file whose name ends in _portable.cc, _avx2.cc or _avx512.cc holds
# kernels and is compiled for that instruction set; nothing but run-time dispatch may call into it.
# main.cc is left to the room's own rules (see below), GPU plug-ins to cmake/gpu.cmake.
set(TESSERA_PORTABLE_FLAGS -O3)
if(TESSERA_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Checks of the heap as calls, none of the stack: with both inline a kernel takes g++ minutes.
  set(TESSERA_PORTABLE_FLAGS -O1 --param=asan-instrumentation-with-call-threshold=0
                             --param=asan-stack=0 -fno-sanitize-address-use-after-scope)
elseif(TESSERA_SANITIZE)
  set(TESSERA_PORTABLE_FLAGS -O1)
endif()
set(TESSERA_AVX2_FLAGS ${TESSERA_PORTABLE_FLAGS} -mavx2 -mfma -mf16c -mbmi2)
set(TESSERA_AVX512_FLAGS ${TESSERA_PORTABLE_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq
                         -mavx512vnni -mavx2 -mfma -mf16c -mbmi2
                         -mprefer-vector-width=512)

function(tessera_room name)
  cmake_parse_arguments(ROOM "" "ALONE" "ROOMS;LIBS;PRIVATE" ${ARGN})
  string(REPLACE ";" "," may_include "${ROOM_ROOMS}")
  set_property(GLOBAL APPEND PROPERTY TESSERA_INCLUDE_GRAPH "${name}=${may_include}")
  set(dir ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "(_test|/main|_fuzz)\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/gpu/plugin/")  # cmake/gpu.cmake

  foreach(source ${sources})
    if(source MATCHES "_portable\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${TESSERA_PORTABLE_FLAGS}")
    elseif(source MATCHES "_avx2\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${TESSERA_AVX2_FLAGS}")
    elseif(source MATCHES "_avx512\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${TESSERA_AVX512_FLAGS}")
    endif()
    if(source MATCHES "_(portable|avx2|avx512)\\.cc$")
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
                                                       SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(ROOM_ALONE AND source MATCHES "${ROOM_ALONE}")
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()

  if(sources)
    add_library(tessera_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(tessera_${name} PRIVATE ${ROOM_PRIVATE})
    tessera_precompile(tessera_${name})
  else()
    add_library(tessera_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(tessera_${name} ${scope} ${CMAKE_SOURCE_DIR}/src)
  list(TRANSFORM ROOM_ROOMS PREPEND tessera_ OUTPUT_VARIABLE room_libs)
  target_link_libraries(tessera_${name} ${scope} ${room_libs} ${ROOM_LIBS})

  if(EXISTS ${dir}/main.cc)
    add_executable(tessera ${dir}/main.cc)
    target_link_libraries(tessera PRIVATE tessera_${name})
  endif()

  if(TESSERA_TESTS AND tests AND (NOT TESSERA_TEST_ROOMS OR name IN_LIST TESSERA_TEST_ROOMS))
    add_executable(${name}_test ${tests})
    tessera_precompile_test(${name}_test)
    target_link_libraries(${name}_test PRIVATE tessera_${name} GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE
                               TESSERA_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_test(NAME ${name} COMMAND ${name}_test)
    if(TESSERA_SANITIZE)  # on two cores that others use too
      set_tests_properties(${name} PROPERTIES TIMEOUT 900)
    else()
      set_tests_properties(${name} PROPERTIES TIMEOUT 300)
    endif()
  endif()
endfunction()
