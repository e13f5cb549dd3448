# Spack's recipe (Spack 1.0 or later): copy it to packages/fdbroker/package.py of a repository of yours. No release is published yet, so
# build from a checkout: spack develop --path CHECKOUT fdbroker@0.1.0. Must never write outside of the prefix.

from spack.package import *
from spack_repo.builtin.build_systems.generic import Package


class Fdbroker(Package):
    """A per-node broker for file descriptors of shared GPU memory: daemon, command, C library, and layers for Level Zero and CUDA
    programs. It shares memory between processes without running out of file descriptors."""

    license("MIT OR Apache-2.0", checked_by="upstream")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    # systemd/install.sh and libclient/capi/link.sh.
    depends_on("binutils", type="build")
    requires("platform=linux")

    def install(self, spec, prefix):
        which("cargo", required=True)("build", "--release", "--workspace", "--locked")
        install_sh = Executable("systemd/install.sh")
        install_sh("--prefix", prefix, "--from", "target/release")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        # Real processes share real memory through a broker of their own.
        Executable(self.prefix.bin.fdbroker)("demo")
