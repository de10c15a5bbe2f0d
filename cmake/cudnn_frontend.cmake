# cudnn_frontend.cmake -- finds the headers of the pip package nvidia-cudnn-frontend. Depending on
# its version they are in PREFIX/include or in site-packages/include of its python3; a package in
# the user's own site-packages is found too. Sets CUDNN_FRONTEND_INCLUDE.
#
#     cmake -P cmake/cudnn_frontend.cmake    prints the folder
execute_process(COMMAND python3 -c "import site, sys, sysconfig
packages = [sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), site.getusersitepackages()]
packages += site.getsitepackages()
print(';'.join([sys.prefix + '/include'] + [p + '/include' for p in packages if p]))"
    OUTPUT_VARIABLE python_includes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${python_includes})
if(CMAKE_SCRIPT_MODE_FILE)
    message(STATUS "${CUDNN_FRONTEND_INCLUDE}")
endif()
