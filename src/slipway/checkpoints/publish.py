"""Where checkpoints lie under a root, and how a finished one becomes visible: at once, whole, or not at all.

::

    ROOT/<name>                      relative link, swapped atomically, to one of
    ROOT/.store/<owner>/<name>/<revision>[.<unique>]/     plain files 0444, folders 0555, and the manifest
    ROOT/.store/.staging/<unique>/   what is being fetched (module staging)

The manifest says of each file what its inode looked like when its digest was known, so a later look costs one stat per file.
A folder name is never used twice (a repair gets a new one), so no process can remove what another has just published.
"""

from __future__ import annotations

import json
import os
import re
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.checkpoints.pins import MANIFEST, digest_of, plain_bytes, refuse_unsafe
from slipway.durable import remove_file, sync_folder, write_durably
from slipway.errors import DiskFailure, UsageError, from_os_error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from slipway.checkpoints.pins import PinnedFile, Pins, Progress

SCHEMA = "slipway/checkpoint-manifest/v1"

_LITTER = re.compile(r"\.[0-9a-f]{32}\.tmp")
"""What a writer of a manifest left in the folder when it was killed, before manifests were written outside of it."""


@dataclass(frozen=True)
class Survey:
    """A published folder held against the lock by stat alone: what is `good`, what must be hashed again, what is too much.

    `seen` has per path what stat said of the good and the doubtful files.
    """

    folder: Path
    good: tuple[PinnedFile, ...]
    doubtful: tuple[PinnedFile, ...]
    missing: tuple[PinnedFile, ...]
    extra: tuple[str, ...]
    seen: Mapping[str, os.stat_result]

    @property
    def intact(self) -> bool:
        return not (self.doubtful or self.missing or self.extra)


def published(lock: Pins, root: Path) -> Path | None:
    """The folder that `ROOT/<name>` leads to, if it holds just what `lock` says as far as stat can tell; else None.

    Raises: UsageError for a lock that names a place outside its folder.
    """
    places = Places.of(lock, root)
    folder = places.linked()
    if folder is None:
        return None
    return folder if survey(lock, folder).intact else None


def survey(lock: Pins, folder: Path) -> Survey:
    """`folder` held against `lock` by stat: size, inode, mtime and ctime of each file, as its manifest remembers them."""
    remembered = read_manifest(folder, lock)
    found = files_in(folder)
    links = [f"{path}/" for path in found if (folder / path).is_symlink()]
    good: list[PinnedFile] = []
    doubtful: list[PinnedFile] = []
    missing: list[PinnedFile] = []
    seen: dict[str, os.stat_result] = {}
    for file in lock.files:
        if any(file.path.startswith(link) for link in links):
            missing.append(file)  # a folder was replaced by a link: what is behind it is not ours
            continue
        try:
            status = os.lstat(folder / file.path)
        except OSError:
            missing.append(file)
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size_bytes:
            missing.append(file)
            continue
        seen[file.path] = status
        (good if remembered.get(file.path) == identity(status, file) else doubtful).append(file)
    return Survey(folder, tuple(good), tuple(doubtful), tuple(missing), tuple(strangers(lock, folder)), seen)


def strangers(lock: Pins, folder: Path) -> list[str]:
    """Paths of what is in `folder` and is neither in `lock` nor Slipway's own; relative, sorted."""
    expected = {file.path for file in lock.files} | {MANIFEST}
    return [path for path in files_in(folder) if path not in expected and not _LITTER.fullmatch(path)]


def identity(status: os.stat_result, file: PinnedFile) -> dict[str, Any]:
    """What the manifest remembers of a file whose digest is known.

    ctime defeats tools that restore mtime. The device number is left out: it may change when the host starts again.
    """
    return {
        "digest": digest_of(file),
        "size_bytes": status.st_size,
        "inode": status.st_ino,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }


def files_in(folder: Path) -> list[str]:
    """Paths of everything in `folder` that is no folder, and of links to folders; relative, sorted."""
    found = []
    for parent, names, files in os.walk(folder):
        links = [name for name in names if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118 -- os.walk speaks text
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in files + links]  # noqa: PTH118
    return sorted(found)


def read_manifest(folder: Path, lock: Pins) -> dict[str, Any]:
    """What the manifest in `folder` remembers per path; empty when there is none for this repository and revision."""
    try:
        data = json.loads(plain_bytes(folder / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}  # without a manifest every file is doubtful, which is the safe answer
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return {}
    files = data.get("files")
    same = data.get("repo") == lock.repo and data.get("revision") == lock.revision
    return files if same and isinstance(files, dict) else {}


def read_any_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """What the manifest in `folder` remembers per path, whatever repository and revision it is of."""
    try:
        data = json.loads(plain_bytes(folder / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    files = data.get("files") if isinstance(data, dict) and data.get("schema") == SCHEMA else None
    return {path: known for path, known in files.items() if isinstance(known, dict)} if isinstance(files, dict) else {}


def read_chunks(folder: Path) -> dict[str, dict[int, str]]:
    """Per path, the digest of the file up to the end of each chunk, as the manifest in `folder` remembers them."""
    try:
        found = json.loads(plain_bytes(folder / MANIFEST))["prefix_digests"]
        return {path: {int(end): str(digest) for end, digest in digests.items()} for path, digests in found.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}  # without them a damaged file is fetched whole


def write_manifest(
    lock: Pins,
    folder: Path,
    chunks: Mapping[str, Mapping[int, str]] | None = None,
    seen: Mapping[str, os.stat_result] | None = None,
) -> None:
    """Nothing; every file in `folder` is then remembered as it was `seen` when its digest was known; without it, as it is now.

    `chunks` is what `read_chunks` answers from then on; without it, what it answers now.

    Raises: DiskFailure, MissingFile.
    """
    at = {file.path: (seen or {}).get(file.path) or os.lstat(folder / file.path) for file in lock.files}
    files = {file.path: identity(at[file.path], file) for file in lock.files}
    known = read_chunks(folder) if chunks is None else chunks
    prefixes = {path: {str(end): digest for end, digest in found.items()} for path, found in known.items() if found}
    data = {"schema": SCHEMA, "repo": lock.repo, "revision": lock.revision, "files": files, "prefix_digests": prefixes}
    _write_manifest(data, folder)


def remember_links(folder: Path, paths: Collection[str]) -> None:
    """Nothing; the manifest in `folder` then knows the new ctime of files that only gained or lost a hard link.

    Call it right after making or removing the link, for files that were good before. A file that differs in anything else
    stays as it was remembered, and is then doubtful.

    Raises: DiskFailure.
    """
    data = json.loads(plain_bytes(folder / MANIFEST))
    for path in paths:
        status, known = os.lstat(folder / path), data["files"].get(path)
        if known is None:
            continue  # found wrong meanwhile
        now = (status.st_size, status.st_ino, status.st_mtime_ns)
        if now == (known["size_bytes"], known["inode"], known["mtime_ns"]):
            known["ctime_ns"] = status.st_ctime_ns
    _write_manifest(data, folder)


def forget(folder: Path, paths: Collection[str]) -> None:
    """Nothing; the manifest in `folder` knows nothing of `paths` any more, so the next look hashes them.

    Raises: DiskFailure, OSError.
    """
    try:
        data = json.loads(plain_bytes(folder / MANIFEST))
        files = data["files"]
        known = [path for path in paths if files.pop(path, None) is not None]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, FileNotFoundError):
        return  # a manifest that says nothing makes every file doubtful
    if known:
        _write_manifest(data, folder)


def is_published(folder: Path) -> bool:
    """Whether `folder` (or what it links to) lies where Slipway publishes, so that a manifest belongs in it."""
    parents = folder.resolve().parents
    return len(parents) > 3 and parents[2].name == ".store" and not parents[1].name.startswith(".")


def tidy(folder: Path, progress: Progress) -> None:
    """Nothing; what a killed writer left in the published `folder` is gone, and the folder is read-only again."""
    try:
        left = [name for name in os.listdir(folder) if _LITTER.fullmatch(name)]  # noqa: PTH208 -- names only
        if not left and not stat.S_IMODE(folder.stat().st_mode) & 0o222:
            return
        folder.chmod(0o755)
        for name in left:
            remove_file(folder / name)
        folder.chmod(0o555)
    except OSError as error:
        progress.note(f"{folder} is not tidied up: {error.strerror}")


def _write_manifest(data: dict[str, Any], folder: Path) -> None:
    """Nothing; `folder` has this manifest. Half-written it lies outside of it: an engine may be reading the folder."""
    text = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    folder = folder.resolve()
    store = next((parent for parent in folder.parents if parent.name == ".store"), None)
    place = store / ".staging" if store else folder
    temporary = place / f".{uuid.uuid4().hex}.tmp"
    mode = 0o555 if is_published(folder) else stat.S_IMODE(folder.stat().st_mode)
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        write_durably(temporary, text.encode(), 0o444)
        folder.chmod(mode | 0o300)
        temporary.replace(folder / MANIFEST)
        sync_folder(folder)
    except OSError as error:
        raise from_os_error(error, folder / MANIFEST, "writing the file") from error
    finally:
        remove_file(temporary)
        folder.chmod(mode)


@dataclass(frozen=True)
class Places:
    """The places of one locked checkpoint under a root."""

    root: Path
    store: Path
    link: Path
    revision: str

    @classmethod
    def of(cls, lock: Pins, root: Path) -> Places:
        """The places of `lock` under `root`; nothing is created.

        Raises: UsageError for a lock that names a place outside its folder.
        """
        refuse_unsafe(lock)
        return cls(root, root / ".store" / lock.repo, root / lock.repo.split("/")[1], lock.revision)

    @property
    def foreign(self) -> Path | None:
        """The plain folder that stands where the link belongs: copied there by hand, perhaps. None when there is none."""
        return self.link if self.link.is_dir() and not self.link.is_symlink() else None

    def prepare(self, *, adopt: bool = False) -> None:
        """Nothing; the store exists, and no link leads out of it or stands in the way. With `adopt` a plain folder may.

        Raises: DiskFailure, UsageError when `ROOT/<name>` is not Slipway's.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            folder = self.root
            for part in self.store.relative_to(self.root).parts:
                folder = folder / part
                try:
                    folder.mkdir(mode=0o755)
                except FileExistsError:
                    refuse_link(folder)
            refuse_links(self.root)
        except OSError as error:
            raise from_os_error(error, self.root, "preparing the checkpoint folder") from error
        if not (adopt and self.foreign):
            self._refuse_foreign()

    def candidates(self) -> list[Path]:
        """The folders that were published for this revision, the linked one first."""
        linked = self.linked()
        folders = [path for path in self.store.glob(f"{self.revision}*") if path.name.split(".")[0] == self.revision]
        found = [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]
        return sorted(found, key=lambda folder: (folder != linked, folder.name))

    def linked(self) -> Path | None:
        """The folder of this revision that `ROOT/<name>` leads to, or None."""
        try:
            target = self.root / os.readlink(self.link)  # noqa: PTH115 -- Path.readlink is newer than some hosts
        except OSError:
            return None
        ours = target.parent == self.store and target.name.split(".")[0] == self.revision
        return target if ours and target.is_dir() and not target.is_symlink() else None

    def adopt(self, tree: Path, *, repair: bool) -> Path:
        """The folder in the store that `tree` has become; it is not linked yet.

        `tree` is complete, durable and on the same file system. A `repair` gets a name of its own.
        """
        names = [f"{self.revision}.{uuid.uuid4().hex[:12]}"]
        if not repair:
            names.insert(0, self.revision)
        for name in names:
            try:
                tree.rename(self.store / name)
            except OSError:
                if name == names[-1]:
                    raise
                continue  # another fetcher was first
            break
        (self.store / name).chmod(0o555)
        sync_folder(self.store)
        return self.store / name

    def swap_link(self, folder: Path) -> None:
        """Nothing; `ROOT/<name>` then leads to `folder`, and led to something whole at every moment."""
        self._refuse_foreign()
        temporary = self.root / ".store" / ".staging" / f"{uuid.uuid4().hex}.link"
        temporary.parent.mkdir(mode=0o700, exist_ok=True)
        os.symlink(folder.relative_to(self.root), temporary)  # noqa: PTH211
        try:
            temporary.replace(self.link)
        except BaseException:
            remove_file(temporary)
            raise
        for parent in (self.store.parent, self.store.parent.parent, self.root):
            sync_folder(parent)

    def _refuse_foreign(self) -> None:
        """Nothing; whatever stands at `ROOT/<name>` is a link that Slipway made for this repository."""
        if not os.path.lexists(self.link):
            return
        target = os.readlink(self.link) if self.link.is_symlink() else ""  # noqa: PTH115
        if (self.root / target).parent != self.store or not target:
            what = f"leads to {target}" if target else "is not a link"
            raise UsageError(
                self.link,
                f"already exists and {what}",
                f"it must be Slipway's link into {self.store.relative_to(self.root)}",
                "move it away, take over what is right in it with --adopt, or fetch into another folder with --dest",
            )


def refuse_links(root: Path) -> None:
    """Nothing, when Slipway's own folders under `root` are folders, as far as they exist: what is in them may be removed.

    Raises: DiskFailure.
    """
    for folder in (root / ".store", root / ".store" / ".staging", root / ".store" / ".records"):
        if os.path.lexists(folder):
            refuse_link(folder)


def refuse_link(folder: Path) -> None:
    """Nothing, when `folder` is a plain folder.

    Raises: DiskFailure.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise DiskFailure(
            folder,
            "is a link or a file where the store needs a plain folder",
            "a link could lead the checkpoint to another place",
            "remove it, or fetch into another folder with --dest",
        )


def make_read_only(tree: Path, files: Sequence[PinnedFile]) -> None:
    """Nothing; every folder below `tree` is 0555 and on disk, deepest first; `tree` itself stays writable to be renamed."""
    parents = {parent for file in files for parent in Path(file.path).parents}
    for parent in sorted(parents, key=lambda path: -len(path.parts)):
        if parent.parts:
            (tree / parent).chmod(0o555)
        sync_folder(tree / parent)
