# What `cmake --install` and the wheel hold: the headers, the CMake package with the targets ParallelTensor::parallel_tensor
# (headers alone) and ParallelTensor::collectives (the kernels), and the emulated driver. A wheel's prefix is the package's
# folder, where the module lies with the emulated driver beside it.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(SKBUILD)
  set(library_folder .)
  set(CMAKE_INSTALL_LIBDIR lib)
else()
  set(library_folder ${CMAKE_INSTALL_LIBDIR})
endif()
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ParallelTensor)

install(
  DIRECTORY include/parallel_tensor
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING
  PATTERN "*.h"
  PATTERN "*.hpp"
  PATTERN "*.cuh"
)

install(TARGETS parallel_tensor EXPORT ParallelTensorTargets)
if(TARGET parallel_tensor_collectives)
  set_target_properties(parallel_tensor_collectives PROPERTIES EXPORT_NAME collectives)
  install(TARGETS parallel_tensor_collectives EXPORT ParallelTensorTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(EXPORT ParallelTensorTargets NAMESPACE ParallelTensor:: DESTINATION ${package_folder})
configure_package_config_file(
  cmake/ParallelTensorConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/ParallelTensorConfig.cmake
  INSTALL_DESTINATION ${package_folder}
)
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/ParallelTensorConfigVersion.cmake
  COMPATIBILITY SameMinorVersion
)
install(
  FILES
    ${CMAKE_CURRENT_BINARY_DIR}/ParallelTensorConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/ParallelTensorConfigVersion.cmake
    cmake/CudaToolkit.cmake
  DESTINATION ${package_folder}
)

if(TARGET parallel_tensor_emulated_driver)
  install(TARGETS parallel_tensor_emulated_driver LIBRARY DESTINATION ${library_folder})
endif()
if(TARGET _core)
  install(TARGETS _core LIBRARY DESTINATION ${library_folder})
endif()
