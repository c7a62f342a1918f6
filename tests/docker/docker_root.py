"""The root of an image, made from this machine: no registry, no debootstrap.

It holds the running Python without its site packages, pytest, and the shell tools, each with the
libraries that `ldd` names.
"""

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from shutil import which

TOOLS = (
    "bash sh cat chmod chown cp cut date dd df dirname du echo env false head id install kill ln ls"
    " mkdir mkfifo mktemp mv nice nohup nproc od paste printf pwd readlink realpath rm rmdir seq"
    " sha256sum sleep sort split stat sync tail tee test timeout touch tr true truncate uname uniq"
    " wc yes awk diff find git grep gzip patch ps sed tar xargs"
).split()
PURE = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
UNUSED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo"}
UNUSED |= {"ensurepip", "lib2to3", "pydoc_data", "__pycache__.old"}
FOLDERS = ("etc", "proc", "sys", "dev", "tmp", "root", "home/runner", "usr/bin", "usr/lib")
USERS = "root:x:0:0:root:/root:/bin/bash\nrunner:x:1000:1000::/home/runner:/bin/bash\n"
GROUPS = "root:x:0:\nrunner:x:1000:\n"
CONFIG = ("ENV PATH=/usr/local/bin:/usr/bin:/bin", "ENV LANG=C.UTF-8", 'CMD ["/bin/bash"]')


def libraries(files: Iterable[str]) -> set[Path]:
    """The loader and the shared libraries that these files need."""
    done = subprocess.run(["ldd", *files], capture_output=True, text=True)
    return {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(0x", done.stdout, re.M)}


def lean(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves out what no task uses; the files belong to root."""
    parts = Path(member.name).parts
    if UNUSED & set(parts) or any(part.startswith("config-") for part in parts):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def write_root(out: io.BufferedIOBase) -> None:
    """Writes the root as a tar."""
    library = Path("usr/lib")
    with tarfile.open(fileobj=out, mode="w|") as archive:

        def folder(name: str, mode: int = 0o755) -> None:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, mode
            archive.addfile(member)

        def text(name: str, content: str) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))

        def link(name: str, target: str) -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)

        def copy(source: Path, name: Path) -> None:
            archive.add(source, str(name), filter=lean)

        for name in FOLDERS:
            folder(name, 0o1777 if name == "tmp" else 0o755)
        for name in ("bin", "lib", "lib64"):
            link(name, "usr/lib" if name != "bin" else "usr/bin")
        text("etc/passwd", USERS)
        text("etc/group", GROUPS)

        tools = {name: Path(os.path.realpath(which(name) or "")) for name in TOOLS}
        missing = [name for name, path in tools.items() if not path.is_file()]
        if missing:
            raise OSError(f"not installed here: {', '.join(missing)}")
        for name, path in tools.items():
            copy(path, Path("usr/bin", name))
        folder("usr/lib/git-core")
        link("usr/lib/git-core/git", "/usr/bin/git")

        python = os.path.realpath(sys.executable)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        stdlib, ours = Path(sysconfig.get_path("stdlib")), Path("usr/local/lib", version)
        copy(Path(python), Path("usr/local/bin", version))
        for name in ("python", "python3"):
            link(f"usr/local/bin/{name}", version)
        copy(stdlib, ours)
        for name in PURE:
            place = Path(find_spec(name).origin)
            place = place.parent if place.name == "__init__.py" else place
            archive.add(place, str(ours / "site-packages" / place.name), filter=root_owned)

        dynamic = map(str, (stdlib / "lib-dynload").glob("*.so"))
        needed = libraries([python, *map(str, tools.values()), *dynamic])
        for path in sorted(needed):
            copy(Path(os.path.realpath(path)), library / path.name)


def root_owned(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = 0
    return member
