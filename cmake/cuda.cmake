# cuda.cmake -- builds sheaf-cuda.so and its benchmarks; included if nvcc is found.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90) # 90: also its PTX
set(CMAKE_CUDA_STANDARD 17)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/device/cuda/*.c src/device/cuda/*.cu)
# Code that uses instructions that only sm_90a has.
set(cuda_sources_90a ${cuda_sources})
list(FILTER cuda_sources_90a INCLUDE REGEX "/(pingpong|hopper_[a-z0-9_]*)\\.cu$")
list(REMOVE_ITEM cuda_sources ${cuda_sources_90a})
add_library(sheaf_cuda MODULE ${cuda_sources})
target_include_directories(sheaf_cuda PRIVATE src)
target_include_directories(sheaf_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(sheaf_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:C>:${c_options}>
    $<$<COMPILE_LANGUAGE:CUDA>:-O3 $<$<BOOL:${SHEAF_WERROR}>:-Werror=all-warnings>>)
target_link_libraries(sheaf_cuda PRIVATE CUDA::cublasLt sheaf_cuda_90a)
set_target_properties(sheaf_cuda PROPERTIES PREFIX "" OUTPUT_NAME sheaf-cuda SUFFIX .so
    CUDA_RUNTIME_LIBRARY Shared C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
add_library(sheaf_cuda_90a OBJECT ${cuda_sources_90a})
target_include_directories(sheaf_cuda_90a PRIVATE src)
target_compile_options(sheaf_cuda_90a PRIVATE -O3 $<$<BOOL:${SHEAF_WERROR}>:-Werror=all-warnings>)
set_target_properties(sheaf_cuda_90a PROPERTIES CUDA_ARCHITECTURES 90a-real POSITION_INDEPENDENT_CODE ON
    CUDA_RUNTIME_LIBRARY Shared CUDA_VISIBILITY_PRESET hidden)
set(cuda "${CUDAToolkit_VERSION}, sheaf-cuda.so for sm_80, sm_90 and newer")

include(cmake/cudnn_frontend.cmake)
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(CUDNN_FRONTEND_INCLUDE AND CUDNN_INCLUDE)
    target_compile_definitions(sheaf_cuda PRIVATE SHEAF_CUDNN)
    target_include_directories(sheaf_cuda SYSTEM PRIVATE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE})
    string(APPEND cuda ", attention by cuDNN if found at run time")
else()
    string(APPEND cuda ", attention by our own kernels (for cuDNN's: pip install nvidia-cudnn-frontend)")
endif()

file(GLOB programs CONFIGURE_DEPENDS bench/cuda/*.c)
foreach(source IN LISTS programs)
    get_filename_component(name ${source} NAME_WE)
    add_executable(bench_${name} ${source})
    target_link_libraries(bench_${name} PRIVATE sheaf_bench sheaf_core)
    target_compile_definitions(bench_${name} PRIVATE BENCH_CUDA_OBJECT="$<TARGET_FILE:sheaf_cuda>")
    add_dependencies(bench_${name} sheaf_cuda)
    # sheaf-cuda.so calls it, no benchmark does; keeps the linker from dropping it.
    target_link_options(bench_${name} PRIVATE -Wl,--undefined=rope_frequency)
    set_target_properties(bench_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endforeach()
