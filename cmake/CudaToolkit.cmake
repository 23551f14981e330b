# Finds an installed CUDA toolkit or the PyPI packages nvidia-cuda-nvcc, -crt, -cccl, -runtime
# and nvidia-nvvm, which lay their files out under site-packages/nvidia/cu13. No GPU and no driver is asked.
#   PARALLEL_TENSOR_CUDA               in:  "toolkit" or "packages" admits only that one, empty takes the toolkit first
#   PARALLEL_TENSOR_NVCC               out: the compiler, version 13 or newer
#   PARALLEL_TENSOR_CUDA_INCLUDE_DIR   out: the folder of cuda.h
set(
  PARALLEL_TENSOR_CUDA
  "$ENV{PARALLEL_TENSOR_CUDA}"
  CACHE STRING
  "Where CUDA comes from: toolkit, packages, or empty for either"
)

function(parallel_tensor_nvcc_is_new_enough result program)
  execute_process(COMMAND ${program} --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(NOT text MATCHES "release ([0-9]+)\\." OR CMAKE_MATCH_1 LESS 13)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(parallel_tensor_find_cuda)
  set(toolkit "")
  if(NOT PARALLEL_TENSOR_CUDA STREQUAL "packages")
    set(toolkit $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
    find_program(
      PARALLEL_TENSOR_NVCC
      nvcc
      HINTS ${toolkit}
      PATH_SUFFIXES bin
      VALIDATOR parallel_tensor_nvcc_is_new_enough
    )
  endif()

  set(packages "")
  if(NOT PARALLEL_TENSOR_CUDA STREQUAL "toolkit" AND NOT PARALLEL_TENSOR_NVCC)
    find_package(Python 3.10 COMPONENTS Interpreter QUIET)
    if(Python_Interpreter_FOUND)
      execute_process(
        COMMAND
          ${Python_EXECUTABLE} -c
          "import importlib.util as u; s = u.find_spec('nvidia'); print(';'.join(s.submodule_search_locations) if s else '')"
        OUTPUT_VARIABLE packages
        OUTPUT_STRIP_TRAILING_WHITESPACE
        ERROR_QUIET
      )
      list(TRANSFORM packages APPEND /cu13)
    endif()
    find_program(
      PARALLEL_TENSOR_NVCC
      nvcc
      PATHS ${packages}
      PATH_SUFFIXES bin
      VALIDATOR parallel_tensor_nvcc_is_new_enough
      NO_DEFAULT_PATH
    )
  endif()

  # The headers of the same release as the compiler come first; without a compiler any cuda.h will do.
  set(beside "")
  if(PARALLEL_TENSOR_NVCC)
    file(REAL_PATH "${PARALLEL_TENSOR_NVCC}" program)
    get_filename_component(beside "${program}" DIRECTORY)
    set(beside ${beside}/.. ${beside}/../targets/${CMAKE_SYSTEM_PROCESSOR}-linux)
  endif()
  find_path(
    PARALLEL_TENSOR_CUDA_INCLUDE_DIR
    cuda.h
    PATHS ${beside} ${toolkit} ${packages}
    PATH_SUFFIXES include
    NO_DEFAULT_PATH
  )
  if(NOT PARALLEL_TENSOR_CUDA STREQUAL "packages")
    find_path(PARALLEL_TENSOR_CUDA_INCLUDE_DIR cuda.h)
  endif()
endfunction()

parallel_tensor_find_cuda()
