# The libraries that every build needs, as the targets rk::gsl, rk::cjson, rk::sqlite, rk::blas and Threads::Threads.
# A missing one is a message that names the Debian package, once for all of them.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

set(RK_MISSING "")

# rk_find_library(<target> <header> <library> <package>): the header must be found too, since a runtime package alone
# brings only the library. With RK_STATIC the archive is taken when there is one.
function(rk_find_library target header library package)
    cmake_parse_arguments(PARSE_ARGV 4 find "" "" "SUFFIXES")
    string(TOUPPER ${library} upper)
    find_path(RK_${upper}_INCLUDE ${header} PATH_SUFFIXES ${find_SUFFIXES})
    if(RK_STATIC)
        find_library(RK_${upper}_LIBRARY NAMES lib${library}.a ${library} PATH_SUFFIXES ${find_SUFFIXES})
    else()
        find_library(RK_${upper}_LIBRARY NAMES ${library} PATH_SUFFIXES ${find_SUFFIXES})
    endif()
    mark_as_advanced(RK_${upper}_INCLUDE RK_${upper}_LIBRARY)
    if(NOT RK_${upper}_INCLUDE OR NOT RK_${upper}_LIBRARY)
        set(RK_MISSING ${RK_MISSING} ${package} PARENT_SCOPE)
        return()
    endif()
    add_library(${target} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES
        IMPORTED_LOCATION ${RK_${upper}_LIBRARY}
        INTERFACE_INCLUDE_DIRECTORIES ${RK_${upper}_INCLUDE})
endfunction()

rk_find_library(rk::blas cblas.h openblas libopenblas-dev SUFFIXES openblas)
rk_find_library(rk::gsl gsl/gsl_statistics_double.h gsl libgsl-dev)
rk_find_library(rk::cjson cjson/cJSON.h cjson libcjson-dev)
rk_find_library(rk::sqlite sqlite3.h sqlite3 libsqlite3-dev)

if(RK_MISSING)
    list(REMOVE_DUPLICATES RK_MISSING)
    list(JOIN RK_MISSING " " packages)
    message(FATAL_ERROR "Libraries are missing. Install them with:\n    sudo apt-get install ${packages}\n"
        "or run scripts/packages, which installs everything that the build needs.")
endif()

# GSL's own CBLAS (libgslcblas) has the same symbols as OpenBLAS and is many times slower: OpenBLAS serves both.
set_property(TARGET rk::gsl PROPERTY INTERFACE_LINK_LIBRARIES rk::blas m)
set_property(TARGET rk::blas PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads m)
set_property(TARGET rk::sqlite PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads ${CMAKE_DL_LIBS} m)
