# Spack's recipe, for Spack 1.0 and later. In a repository of the site's own:
#     packages/gradcomp/package.py
# and the archive of `make dist` in a mirror, or `spack develop --path SOURCES gradcomp@0.1.0`.
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Gradcomp(Package, CudaPackage):
    """Gradient compression for distributed training: an option of srun, collectives and compressors
    as plugins, hooks for PyTorch, datasets staged into node-local caches."""

    manual_download = True
    license("MIT")
    version("0.1.0")

    variant("slurm", default=True, description="The SPANK plugin: srun --gradcomp")
    variant("pmix", default=True, description="Ranks that srun or mpirun started find each other")
    variant("verbs", default=True, description="Links between nodes over InfiniBand and RoCE")
    variant("nfs", default=True, description="nfs:// sources of datasets")
    variant("openmpi", default=False, description="Collectives of Open MPI's programs are compressed")
    variant("mpich", default=False, description="Collectives of MPICH's programs are compressed")
    variant("nccl", default=True, when="+cuda", description="Collectives of NCCL")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("libinih")
    depends_on("xxhash")
    depends_on("jansson")
    depends_on("libsodium")
    depends_on("libseccomp")
    depends_on("lz4")
    depends_on("zstd")
    depends_on("zfp")
    depends_on("munge", when="+slurm")
    depends_on("slurm", when="+slurm")
    depends_on("pmix", when="+pmix")
    depends_on("rdma-core", when="+verbs")
    depends_on("libnfs", when="+nfs")
    depends_on("openmpi", type="build", when="+openmpi")
    depends_on("mpich", type="build", when="+mpich")
    depends_on("nccl@2.18:", when="+nccl")
    # nccl refuses to be built for no architecture.
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"nccl cuda_arch={arch}", when=f"+nccl cuda_arch={arch}")

    def install(self, spec, prefix):
        """configure is not autoconf's, so this is no AutotoolsPackage."""
        arguments = [f"--prefix={prefix}", "--with-jansson", "--with-sodium", "--with-seccomp", "--with-lz4",
                     "--with-zstd", "--with-zfp"]
        for name in ("slurm", "pmix", "verbs", "nfs", "openmpi", "mpich", "cuda"):
            arguments.append(f"--with-{name}" if f"+{name}" in spec else f"--without-{name}")
        arguments.append("--with-nccl" if "+nccl" in spec else "--without-nccl")
        arguments.append("--with-munge" if "+slurm" in spec else "--without-munge")
        Executable("./configure")(*arguments)
        make()
        make("install")

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        env.prepend_path("PYTHONPATH", join_path(self.prefix.lib, "gradcomp", "python"))
