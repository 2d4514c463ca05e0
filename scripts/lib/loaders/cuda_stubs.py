#!/usr/bin/python3
"""Writes stand-ins of the CUDA libraries that torch's wheel from PyPI is linked with, beside torch's own libraries.

Goal: torch imports and computes on the CPU without the 4 GB of wheels that only a GPU needs.
Method: a library is stood in for if torch's libraries need it, and neither torch nor the system has it.  A symbol is
defined if torch's libraries leave it undefined, and it is a CUDA name or has the version of such a library.  Each
stand-in defines all of these symbols.  A call returns 0.  The CUDA runtime's questions for devices return "no device"
(100).  The registration of kernels, which happens when a library is loaded, gets a place in memory.  Needs gcc and
binutils.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

NO_DEVICE = {"cuInit", "cuDeviceGetCount", "cuDriverGetVersion", "cudaDriverGetVersion", "cudaGetDevice",
             "cudaGetDeviceCount", "cudaGetLastError", "cudaPeekAtLastError", "cudaRuntimeGetVersion", "cudaSetDevice"}
A_PLACE = {"__cudaRegisterFatBinary"}
CUDA_NAME = re.compile(r"_*cu[a-zA-Z]|p?nccl|nvtx|nv[jJ]it|nvrtc|nvshmem|NVSHMEM|__nv|_Z\w*nvshmem")


def lines_of(*command):
    """The lines that a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def needed_by(library):
    """The names of the libraries that a library is linked with."""
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", "\n".join(lines_of("readelf", "-dW", library)))


def symbols_of(library):
    """(undefined, defined) dynamic symbols of a library; the undefined with their versions, or "" for none."""
    undefined, defined = {}, set()
    for line in lines_of("nm", "--dynamic", library):
        *_, kind, symbol = line.split()
        name, _, version = symbol.partition("@")
        if kind in "Uwv":
            undefined[name] = version.lstrip("@")
        else:
            defined.add(name)
    return undefined, defined


def missing(directory):
    """(libraries that are missing, symbols with their versions that the stand-ins should define)."""
    libraries = [path for path in glob.glob(f"{directory}/*.so*") if not is_stub(path)]
    have = {os.path.basename(path) for path in libraries}
    have |= {line.split()[0] for line in lines_of("/sbin/ldconfig", "-p")[1:]}
    wanted = {name for path in libraries for name in needed_by(path)} - have
    undefined, defined = {}, set()
    for path in libraries:
        more, theirs = symbols_of(path)
        undefined.update(more)
        defined |= theirs
    ours = {name: version for name, version in undefined.items()
            if name not in defined and (version.startswith("lib") or CUDA_NAME.match(name))}
    return sorted(wanted), ours


def is_stub(path):
    """Whether a file is a stand-in: torch has no library this small with a mark in it."""
    with open(path, "rb") as f:
        return os.path.getsize(path) < 4 << 20 and b"belady stand-in" in f.read()


def assembly(symbols):
    """The program of a stand-in."""
    out = ['.section .rodata\n.string "belady stand-in"\n.bss\nplace: .skip 4096\n.text']
    for name in symbols:
        give = "leaq place(%rip), %rax" if name in A_PLACE else f"movl ${100 if name in NO_DEVICE else 0}, %eax"
        out.append(f".globl {name}\n.type {name}, @function\n{name}: {give}\nret")
    return "\n".join(out) + "\n"


def versions(symbols):
    """The linker's script that gives each symbol its version."""
    found = {}
    for name, version in symbols.items():
        if version:
            found.setdefault(version, []).append(name)
    return "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in found.items())


def main():
    (directory,) = glob.glob(os.path.join(sys.argv[1], "lib/python3*/site-packages/torch/lib"))
    libraries, symbols = missing(directory)
    with tempfile.TemporaryDirectory() as work:
        program, script = os.path.join(work, "stub.s"), os.path.join(work, "stub.map")
        for path, text in ((program, assembly(symbols)), (script, versions(symbols))):
            with open(path, "w") as f:
                f.write(text)
        for library in libraries:
            subprocess.run(["gcc", "-shared", "-nostdlib", "-o", os.path.join(directory, library),
                            f"-Wl,-soname,{library}", f"-Wl,--version-script={script}", program], check=True)
    print(f"{len(libraries)} stand-ins with {len(symbols)} symbols: {' '.join(libraries)}", file=sys.stderr)


if __name__ == "__main__":
    main()
