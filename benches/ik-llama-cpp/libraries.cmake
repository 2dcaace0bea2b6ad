# Included by ik-llama-cpp-python's project: installs its libraries alone, which find each other. Its source distribution
# lacks files of the program that it installs with them, which is not used.
set(CMAKE_INSTALL_RPATH "$ORIGIN")
function(install what name)
  if(NOT name STREQUAL "llama-quantize")
    _install(${what} ${name} ${ARGN})
  endif()
endfunction()
