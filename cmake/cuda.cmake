# cuda.cmake -- sheaf-cuda.so, its tests and its benchmark; read where nvcc was found.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90) # 90: its PTX too
set(CMAKE_CUDA_STANDARD 17)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS src/device/cuda/*.c src/device/cuda/*.cu)
add_library(sheaf_cuda MODULE ${cuda_sources})
target_include_directories(sheaf_cuda PRIVATE src)
target_include_directories(sheaf_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(sheaf_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:C>:${c_options}>
    $<$<COMPILE_LANGUAGE:CUDA>:-O3 $<$<BOOL:${SHEAF_WERROR}>:-Werror=all-warnings>>)
target_link_libraries(sheaf_cuda PRIVATE CUDA::cublasLt)
set_target_properties(sheaf_cuda PROPERTIES PREFIX "" OUTPUT_NAME sheaf-cuda SUFFIX .so
    CUDA_RUNTIME_LIBRARY Static C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set(cuda "${CUDAToolkit_VERSION}, sheaf-cuda.so for sm_80, sm_90 and newer")

file(GLOB programs CONFIGURE_DEPENDS bench/cuda/*.c)
foreach(source IN LISTS programs)
    get_filename_component(name ${source} NAME_WE)
    add_executable(bench_${name} ${source})
    target_link_libraries(bench_${name} PRIVATE sheaf_core)
    target_compile_definitions(bench_${name} PRIVATE BENCH_CUDA_OBJECT="$<TARGET_FILE:sheaf_cuda>")
    add_dependencies(bench_${name} sheaf_cuda)
    set_target_properties(bench_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endforeach()
