# GPU plug-ins: libtessera-cuda.so where nvcc is found, libtessera-hip.so where hipcc is, from one
# source. They are no part of a room: the program opens them at run time (device/gpu/plugin.h).
#
#   src/device/gpu/*.cc              in the room device and in the plug-ins: no driver's headers
#   src/device/gpu/kernels/*.cc      likewise
#   src/device/gpu/kernels/*.cu      kernels, compiled by nvcc or hipcc
#   src/device/gpu/plugin/           what needs the driver's headers: in the plug-ins only
option(TESSERA_CUDA "Build the CUDA plug-in where nvcc is found" ON)
option(TESSERA_HIP "Build the HIP plug-in where hipcc is found" OFF)
option(TESSERA_HIP_CHECK "Build it only to see that it compiles and links: at -O1 with hardly a loop unrolled, a tenth of the time, into checked/" OFF)
set(TESSERA_CUDA_TARGETS "80;90a" CACHE STRING "Compute capabilities to build the CUDA plug-in for")
if("90" IN_LIST TESSERA_CUDA_TARGETS)
  message(FATAL_ERROR "TESSERA_CUDA_TARGETS: give 90a for Hopper; 90 lacks its matrix instruction")
endif()
set(TESSERA_HIP_TARGETS "gfx906;gfx1030" CACHE STRING "Processors to build the HIP plug-in for")

# What both sides of the plug-in interface must agree on: the compiler and its flags, and every header
# that the interface reads, with the types that cross.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -MM -MG -I. device/gpu/plugin_api.h
                WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/src
                OUTPUT_VARIABLE crossing COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[\\\\ \n]+" ";" crossing "${crossing}")
list(FILTER crossing INCLUDE REGEX "\\.h$")
list(TRANSFORM crossing PREPEND ${CMAKE_SOURCE_DIR}/src/)
set(text "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_SIZEOF_VOID_P} ${CMAKE_CXX_FLAGS}"
         "${CMAKE_BUILD_TYPE}")
foreach(header ${crossing})
  file(SHA256 ${header} digest)
  string(APPEND text " ${digest}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
endforeach()
string(SHA256 digest "${text}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/gpu_fingerprint.h
     CONTENT "#define TESSERA_GPU_FINGERPRINT \"${digest}\"\n")

set(gpu_dir ${CMAKE_SOURCE_DIR}/src/device/gpu)
file(GLOB gpu_kernels CONFIGURE_DEPENDS ${gpu_dir}/kernels/*.cu ${gpu_dir}/plugin/*.cu)
# The sources that a plug-in has of the rooms, so that it needs nothing of the program.
file(GLOB gpu_host CONFIGURE_DEPENDS ${gpu_dir}/plugin/*.cc ${gpu_dir}/*.cc ${gpu_dir}/kernels/*.cc
     ${CMAKE_SOURCE_DIR}/src/quant/*.cc)
list(FILTER gpu_host EXCLUDE REGEX "(_test|/plugin)\\.cc$")
list(APPEND gpu_host ${gpu_dir}/plugin/plugin.cc ${CMAKE_SOURCE_DIR}/src/base/check.cc
     ${CMAKE_SOURCE_DIR}/src/base/buffer.cc ${CMAKE_SOURCE_DIR}/src/base/by_threads.cc
     ${CMAKE_SOURCE_DIR}/src/device/device.cc
     ${CMAKE_SOURCE_DIR}/src/device/shard_tensors.cc ${CMAKE_SOURCE_DIR}/src/base/thread_team.cc
     ${CMAKE_SOURCE_DIR}/src/model/spec.cc)

# Those that need no driver's headers are the same in each plug-in.
set(gpu_plugin_host ${gpu_host})
list(FILTER gpu_plugin_host INCLUDE REGEX "/plugin/")
list(FILTER gpu_host EXCLUDE REGEX "/plugin/")
add_library(gpu_host OBJECT EXCLUDE_FROM_ALL ${gpu_host})
set_target_properties(gpu_host PROPERTIES POSITION_INDEPENDENT_CODE ON
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON DISABLE_PRECOMPILE_HEADERS ON)
tessera_join(gpu_host)
target_include_directories(gpu_host PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_BINARY_DIR}/generated)
target_link_libraries(gpu_host PRIVATE fmt::fmt Threads::Threads)

# tessera_gpu_objects(VENDOR RESULT COMPILER device_compiler FLAGS flags... SOURCES files...)
# Sets RESULT to the objects that the device's compiler makes of the files.
function(tessera_gpu_objects vendor result)
  cmake_parse_arguments(GPU "" "COMPILER" "FLAGS;SOURCES" ${ARGN})
  set(folder ${CMAKE_BINARY_DIR}/gpu-${vendor})
  file(MAKE_DIRECTORY ${folder})
  set(objects)
  foreach(source ${GPU_SOURCES})
    cmake_path(GET source STEM name)
    set(object ${folder}/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${GPU_COMPILER} ${GPU_FLAGS} -std=c++20 -I${CMAKE_SOURCE_DIR}/src -MD -MF ${object}.d
              -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d
      COMMENT "Building ${vendor} kernels ${name}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${result} ${objects} PARENT_SCOPE)
endfunction()

# A layer's rows and sums go through its loops on their way to the host's cores and back.
set_source_files_properties(${gpu_dir}/plugin/gpu_device_experts.cc PROPERTIES COMPILE_OPTIONS "-O3")

# tessera_gpu_plugin(VENDOR COMPILER device_compiler FLAGS flags... DEFINES definitions...
#                    INCLUDES folders... LIBS libraries...)
function(tessera_gpu_plugin vendor)
  cmake_parse_arguments(GPU "" "COMPILER" "FLAGS;DEFINES;INCLUDES;LIBS" ${ARGN})
  tessera_gpu_objects(${vendor} objects COMPILER ${GPU_COMPILER} FLAGS ${GPU_FLAGS} SOURCES ${gpu_kernels})
  add_library(tessera-${vendor} MODULE ${gpu_plugin_host} $<TARGET_OBJECTS:gpu_host> ${objects})
  set_target_properties(tessera-${vendor} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    DISABLE_PRECOMPILE_HEADERS ON LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  tessera_join(tessera-${vendor})
  target_include_directories(tessera-${vendor} PRIVATE ${CMAKE_SOURCE_DIR}/src
                             ${CMAKE_BINARY_DIR}/generated)
  target_include_directories(tessera-${vendor} SYSTEM PRIVATE ${GPU_INCLUDES})
  target_compile_definitions(tessera-${vendor} PRIVATE ${GPU_DEFINES}
                             TESSERA_GPU_VENDOR="${vendor}")
  target_link_libraries(tessera-${vendor} PRIVATE fmt::fmt Threads::Threads ${GPU_LIBS})
  # Nothing is exported but the entry, and nothing is taken from the program.
  target_link_options(tessera-${vendor} PRIVATE -Wl,--no-undefined -Wl,-Bsymbolic
                      -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/gpu-plugin.map)
endfunction()

# The kernels' own test and benchmark (docs/gpu-kernels-measured.md): built on request alone. The
# runtime is in them, so that a machine needs nothing but the driver.
file(GLOB kernel_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/gpu/*_test.cu)
file(GLOB kernel_benches CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/gpu/*_bench.cu)
# The kernels, and what they need of the rooms.
file(GLOB kernel_host CONFIGURE_DEPENDS ${gpu_dir}/kernels/*.cc ${CMAKE_SOURCE_DIR}/src/quant/*.cc)
list(FILTER kernel_host EXCLUDE REGEX "_test\\.cc$")
list(APPEND kernel_host ${CMAKE_SOURCE_DIR}/src/base/check.cc)
set(kernels ${gpu_kernels})
list(FILTER kernels EXCLUDE REGEX "/plugin/")

# tessera_gpu_program(NAME COMPILER nvcc FLAGS flags... SOURCES files... LIBS libraries...)
function(tessera_gpu_program name)
  cmake_parse_arguments(GPU "" "COMPILER" "FLAGS;SOURCES;LIBS" ${ARGN})
  tessera_gpu_objects(cuda objects COMPILER ${GPU_COMPILER} FLAGS ${GPU_FLAGS} -I${CMAKE_SOURCE_DIR}/bench/gpu
                      SOURCES ${GPU_SOURCES})
  foreach(kernel ${kernels})
    cmake_path(GET kernel STEM stem)
    list(APPEND objects ${CMAKE_BINARY_DIR}/gpu-cuda/${stem}.o)
  endforeach()
  add_executable(${name} EXCLUDE_FROM_ALL ${kernel_host} ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX DISABLE_PRECOMPILE_HEADERS ON
                        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE fmt::fmt-header-only Threads::Threads ${GPU_LIBS})
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
endfunction()

if(TESSERA_SANITIZE)
  return()
endif()
# The CUDA plug-in over an emulator, for tests where no GPU is (tests/gpu/emulator): its kernels are
# compiled by the compiler of everything else.
if(TESSERA_TESTS)
  find_package(Boost REQUIRED COMPONENTS context)
  file(GLOB emulator ${CMAKE_SOURCE_DIR}/tests/gpu/emulator/*.cc)
  # All but the entry, which knows the vendor.
  set(emulated ${gpu_plugin_host} ${gpu_kernels} ${emulator})
  list(REMOVE_ITEM emulated ${gpu_dir}/plugin/plugin.cc)
  add_library(gpu_emulated OBJECT EXCLUDE_FROM_ALL ${emulated})
  set_source_files_properties(${gpu_kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++;-O3")
  tessera_join(gpu_emulated)
  # tessera_emulate(TARGET) - how the sources of such a library are compiled.
  function(tessera_emulate target)
    set_target_properties(${target} PROPERTIES
      POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
      DISABLE_PRECOMPILE_HEADERS ON)
    target_include_directories(${target} BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/tests/gpu/emulator)
    target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src
                               ${CMAKE_BINARY_DIR}/generated)
    target_compile_options(${target} PRIVATE -w -fno-strict-aliasing -ffp-contract=off)
    target_link_libraries(${target} PRIVATE fmt::fmt Threads::Threads Boost::context)
  endfunction()
  tessera_emulate(gpu_emulated)
  # As two vendors' plug-ins, for tests of both in one process; what they are made of is the same.
  add_custom_target(tessera-emulated)
  foreach(vendor cuda hip)
    add_library(emulated-${vendor} MODULE ${gpu_dir}/plugin/plugin.cc $<TARGET_OBJECTS:gpu_emulated>
                                          $<TARGET_OBJECTS:gpu_host>)
    tessera_emulate(emulated-${vendor})
    set_target_properties(emulated-${vendor} PROPERTIES
      OUTPUT_NAME tessera-${vendor} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulated)
    target_compile_definitions(emulated-${vendor} PRIVATE TESSERA_GPU_VENDOR="${vendor}")
    target_link_options(emulated-${vendor} PRIVATE -Wl,--no-undefined -Wl,-Bsymbolic
                        -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/gpu-plugin.map)
    add_dependencies(tessera-emulated emulated-${vendor})
  endforeach()

  # The kernels' own test there: seven minutes, so on request alone.
  add_executable(kernel_test_emulated EXCLUDE_FROM_ALL ${kernel_tests} ${kernels} ${kernel_host} ${emulator})
  set_source_files_properties(${kernel_tests} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
  set_target_properties(kernel_test_emulated PROPERTIES DISABLE_PRECOMPILE_HEADERS ON
                        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulated)
  target_include_directories(kernel_test_emulated BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/tests/gpu/emulator)
  target_include_directories(kernel_test_emulated PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src
                             ${CMAKE_SOURCE_DIR}/bench/gpu)
  target_compile_options(kernel_test_emulated PRIVATE -w -fno-strict-aliasing -ffp-contract=off)
  target_link_libraries(kernel_test_emulated PRIVATE fmt::fmt Threads::Threads Boost::context)
endif()

# TESSERA_WITHOUT_VENDOR: why a plug-in is not built, which the test that opens it says.
set(TESSERA_WITHOUT_cuda "no nvcc: without the CUDA plug-in")
set(TESSERA_WITHOUT_hip "no hipcc: without the HIP plug-in")
if(NOT TESSERA_CUDA)
  set(TESSERA_WITHOUT_cuda "TESSERA_CUDA is off: without the CUDA plug-in")
endif()
if(NOT TESSERA_HIP AND NOT TESSERA_HIP_CHECK)
  set(TESSERA_WITHOUT_hip "TESSERA_HIP and TESSERA_HIP_CHECK are off: without the HIP plug-in")
endif()

if(TESSERA_CUDA)
  find_program(TESSERA_NVCC nvcc HINTS ${CUDA_HOME} ENV CUDA_HOME PATHS /usr/local/cuda/bin)
endif()
if(TESSERA_CUDA AND TESSERA_NVCC)
  execute_process(COMMAND ${TESSERA_NVCC} --version OUTPUT_VARIABLE nvcc_version)
  string(REGEX MATCH "release ([0-9.]+)" nvcc_version "${nvcc_version}")
  if(CMAKE_MATCH_1 VERSION_LESS 12)
    set(TESSERA_WITHOUT_cuda "${TESSERA_NVCC} is of CUDA ${CMAKE_MATCH_1}, which is too old: without the CUDA plug-in")
    message(STATUS "${TESSERA_WITHOUT_cuda}")
    set(TESSERA_CUDA OFF)
  endif()
endif()
if(TESSERA_CUDA AND TESSERA_NVCC)
  cmake_path(GET TESSERA_NVCC PARENT_PATH cuda_bin)
  cmake_path(GET cuda_bin PARENT_PATH cuda_home)
  find_library(TESSERA_CUDART cudart_static PATHS ${cuda_home}/lib64
               ${cuda_home}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
  set(targets)
  foreach(target ${TESSERA_CUDA_TARGETS})
    list(APPEND targets -gencode=arch=compute_${target},code=sm_${target})
    # Also for the driver to compile, where a GPU is newer than all targets.
    if(target STREQUAL "80")
      list(APPEND targets -gencode=arch=compute_80,code=compute_80)
    endif()
  endforeach()
  set(warnings)
  if(TESSERA_WERROR)
    set(warnings -Werror=all-warnings)
  endif()
  if(TESSERA_CUDART)
    set(flags ${targets} -O3 --expt-relaxed-constexpr -lineinfo
              -Xcompiler=-fPIC,-fvisibility=hidden,-O2 ${warnings})
    set(libs ${TESSERA_CUDART} ${CMAKE_DL_LIBS} rt)
    tessera_gpu_plugin(cuda COMPILER ${TESSERA_NVCC} FLAGS ${flags}
                       INCLUDES ${cuda_home}/include LIBS ${libs})
    tessera_gpu_program(kernel_test COMPILER ${TESSERA_NVCC} FLAGS ${flags}
                        SOURCES ${kernel_tests} LIBS ${libs})
    tessera_gpu_program(kernel_bench COMPILER ${TESSERA_NVCC} FLAGS ${flags}
                        SOURCES ${kernel_benches} LIBS ${libs})
  else()
    set(TESSERA_WITHOUT_cuda "no libcudart_static.a in ${cuda_home}: without the CUDA plug-in")
    message(STATUS "${TESSERA_WITHOUT_cuda}")
  endif()
elseif(TESSERA_CUDA)
  message(STATUS "${TESSERA_WITHOUT_cuda}")
endif()

if(TESSERA_HIP OR TESSERA_HIP_CHECK)
  find_program(TESSERA_HIPCC hipcc)
endif()
if(TESSERA_HIPCC AND (TESSERA_HIP OR TESSERA_HIP_CHECK))
  find_library(TESSERA_HIPRT amdhip64)
  set(targets)
  foreach(target ${TESSERA_HIP_TARGETS})
    list(APPEND targets --offload-arch=${target})
  endforeach()
  string(REPLACE ";" "," hip_targets "${TESSERA_HIP_TARGETS}")
  set(optimise -O3)
  if(NOT TESSERA_HIP)
    set(optimise -O1 -mllvm -unroll-threshold=50 -mllvm -pragma-unroll-threshold=50)
  endif()
  tessera_gpu_plugin(hip COMPILER ${TESSERA_HIPCC}
                     FLAGS -x hip ${targets} ${optimise} -fPIC -fvisibility=hidden
                           -Wno-pass-failed -DTESSERA_HIP
                     DEFINES TESSERA_HIP __HIP_PLATFORM_AMD__ TESSERA_HIP_TARGETS="${hip_targets}" LIBS ${TESSERA_HIPRT})
  if(NOT TESSERA_HIP)
    set_target_properties(tessera-hip PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/checked)
  endif()
elseif(TESSERA_HIP OR TESSERA_HIP_CHECK)
  message(STATUS "${TESSERA_WITHOUT_hip}")
endif()
