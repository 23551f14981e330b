# parallel_tensor_compile_options(TARGET): the warnings and sanitizers that all our own targets share.
function(parallel_tensor_compile_options target)
  target_compile_options(
    ${target}
    PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  )
  if(PARALLEL_TENSOR_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(PARALLEL_TENSOR_SANITIZE)
    target_compile_options(
      ${target}
      PRIVATE -fsanitize=${PARALLEL_TENSOR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    )
    target_link_options(${target} PRIVATE -fsanitize=${PARALLEL_TENSOR_SANITIZE})
  endif()
endfunction()
