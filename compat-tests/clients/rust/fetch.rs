//! Empty: the package beside this file only names a dependency.
