"""What single commands of a RUN fetch: programs that do nothing else, and inline code of languages that could."""

from __future__ import annotations

import re

from slipway.images.dockerfile_python import module_words, python_words
from slipway.images.dockerfile_stages import Run, Sheet
from slipway.images.shell_texts import Command, placeholders, sed_commands
from slipway.images.shell_wrappers import SHELLS, names

FETCHERS = frozenset({
    "curl", "wget", "wget2", "wcurl", "curlie", "aria2", "aria2c", "axel", "lynx", "fetch", "http", "https", "httpie", "xh",
    "xhs", "lwp-request", "lwp-download", "ftp", "lftp", "lftpget", "ncftp", "ncftpget", "tnftp", "sftp", "scp", "rsync",
    "svn", "hg", "bzr", "fossil", "scalar", "nc", "ncat", "netcat", "socat", "telnet", "ssh", "autossh", "tftp", "w3m", "links",
    "elinks", "hf", "huggingface-cli", "modelscope", "gdown", "yt-dlp", "youtube-dl", "playwright", "aws", "gsutil", "gcloud",
    "az", "azcopy", "s3cmd", "s5cmd", "rclone", "gh", "glab", "ipfs", "kubectl", "helm", "ollama", "apt-helper",
    "debootstrap", "mmdebstrap", "sshfs", "curlftpfs", "mount.nfs", "mount.nfs4", "mount.cifs",
})  # fmt: skip
_SCRIPTED = re.compile(
    r"python[\d.]*[a-z]?|pypy[\d.]*|perl[\d.]*|ruby[\d.]*|node|nodejs|deno|php[\d.]*|lua[\d.]*|luajit|Rscript|R|julia|tclsh[\d.]*|expect"
)
_NETWORK_CODE = re.compile(
    r"[a-z]+://|\burl(open|retrieve|lib\d?)\b|\b(requests|httpx|aiohttp|pycurl|socket|subprocess|ctypes|ensurepip|pty|runpy)\b"
    r"|\b(ftplib|smtplib|imaplib|poplib|nntplib|telnetlib|xmlrpc|websockets?|paramiko|boto3|botocore|fsspec|gcsfs|s3fs|grpc)\b"
    r"|\b(huggingface_hub|snapshot_download|hf_hub_download|from_pretrained|load_dataset|modelscope|gdown|nltk|tensorflow_hub)\b"
    r"|\btorch\.hub\b|\btorch\s+import\s+hub\b|\bload_state_dict_from_url\b"
    r"|\b(open|create)(_unix)?_connection\b|\bcreate_(subprocess|datagram)_?\w*|\bmultiprocessing\.connection\b"
    r"|\bhttp\.client\b|\bfrom\s+http\s+import\b|\bimport\s+(http|pip)\b|\bfrom\s+pip\b|\bpip\.|\bpip\d?\s+(install|download|wheel)"
    r"|\bimport\s+[\w., ]*,\s*(http|pip)\b"
    r"|\bos\.(system|popen|exec\w*|spawn\w*|posix_spawn\w*)\b|\bpopen\b|\bsystem\b|\b(HTTP|LWP|Net|IO)::"
    r"|\bTCPSocket\b|open-uri|net/http|\bfetch\(|\bexec\b|\beval\b|__import__|import_module|child_process"
    r"|install\.packages|\b(remotes|pak)::|\bPkg\.|/dev/(tcp|udp)/|/inet/|\bcurl\b|\bwget\b",
    re.IGNORECASE,
)
"""What code says that reaches a network, or runs what it puts together; names alone, as far as names tell."""
_CODE_OF = {
    "perl": re.compile(r"`|^-\w*M(IO|LWP|Net|HTTP|Socket|File::Fetch)\b|\bqx\b|\bopen\b[^;]*\|"),
    "ruby": re.compile(r"`|%x|^-\w*r(socket|net|open|http)|\bopen\b\s*\(?\s*['\"]\|"),
    "php": re.compile(
        r"`|\b(readfile|file_get_contents|fopen|copy|fsockopen|curl_\w+|shell_exec|passthru|proc_open)\s*\("
    ),
    # A module by a name of its own, or of the project, is what most such lines want.
    "node": re.compile(
        r"\b(?:require|import)\s*\((?!\s*['\"](\.{0,2}/|(node:)?(assert|buffer|crypto|fs|module|os|path|process|url|util|zlib)['\"]))"
    ),
    "tclsh": re.compile(r"\bsocket\b|\bexec\b|\bopen\b[^;]*\|"),
}
_NETWORK_MODULES = names(
    "httpie http spacy nltk huggingface_hub modelscope playwright gdown yt_dlp wget awscli gsutil aiohttp_cli ftplib "
    "telnetlib nntplib smtplib webbrowser"
)
_SERVING_MODULES = frozenset({"http.server"})
_INLINE = re.compile(r"-[a-zA-Z]*[ceErMp]|--(eval|print|require|import|run|exec)(=.*)?", re.DOTALL)
_SOCKET = re.compile(r"/dev/(tcp|udp)/|/inet/(tcp|udp)/")
_BUILT_SOCKET = re.compile(r"/dev/\S*\$|\$\{?\w+\}?\w*/\S+/\d+$")
_REMOTE = re.compile(r"\b(https?|ftp|ssh|git)://(?!(localhost|127\.0\.0\.1|\[::1\])[:/])", re.IGNORECASE)
_PACKAGES = frozenset({"apt", "apt-get", "aptitude", "dpkg", "pip", "pip3", "npm"})
"""Programs whose words are names of packages; they have their own rules."""
_ONLY_SAY = frozenset({
    "", "echo", "printf", "test", "[", "export", "declare", "readonly", "local", "set", "unset", "grep", "sed", "git", "eval",
    "su", "trap", "script", "uv", "apt-key", "add-apt-repository", "alias",
})  # fmt: skip
"""Programs that may be told a URL: they fetch nothing by it, or are judged by their own rule."""
_AWK = re.compile(r"([gmn]|original-)?awk")
_LETTERS = {
    "python": ("cm", "WX"),
    "perl": ("eE", "IC"),
    "ruby": ("e", "rI"),
    "node": ("ep", "rC"),
    "php": ("rfBRF", "dcz"),
    "lua": ("e", "l"),
    "tclsh": ("", ""),
    "expect": ("cf", "d"),
}
"""The letters of an interpreter's options that give it code, and those with another value."""
_FILE_FROM_STDIN = re.compile(r"(^| )(-[a-zA-Z]*f ?|--\w*file[= ])(-|/dev/stdin|/dev/fd/0)( |$)")
_STDIN = re.compile(r"/dev/stdin|/dev/fd/\d+|/proc/[^/]+/fd/\d+")


class _Interpreters:
    """The programs that run a script which they are given: shells, and languages with a version in the name."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in SHELLS or bool(_SCRIPTED.fullmatch(name)))


INTERPRETERS = _Interpreters()


def names_script(command: Command) -> bool:
    """Whether an interpreter is told what to run by its arguments, so that its stdin is data."""
    shell = command.program in SHELLS
    code, valued = _LETTERS.get(_language(command), ("c", "oO") if shell else ("e", ""))
    rest = iter(command.arguments)
    for word in rest:
        if word == "--":
            continue
        if word == "-" or not word.startswith(("-", "+")):
            return word != "-" and not _STDIN.fullmatch(word)
        if word.startswith("--"):
            if re.fullmatch(r"--(eval|print|run|command)(=.*)?", word, re.DOTALL):
                return True
            if word in {"--rcfile", "--init-file", "--require", "--import"}:
                next(rest, "")
            continue
        for index, letter in enumerate(word[1:], start=2):
            if letter in code:
                return True
            # `sh -s -- args` reads the script from stdin though arguments follow.
            if shell and letter == "s":
                return False
            if letter in valued:
                if index == len(word):
                    next(rest, "")
                break
    return False


def _language(command: Command) -> str:
    """The language of an interpreter, whatever its version."""
    name = re.sub(r"[\d.]+[a-z]?$", "", command.program)
    return {"nodejs": "node", "deno": "node", "pypy": "python", "luajit": "lua"}.get(name, name)


def runs_what_it_reads(command: Command) -> bool:
    """Whether an interpreter takes its script from a pipe, a here-string, `<(…)` or the words that xargs makes."""
    program, arguments, fed = command.program, command.arguments, command.reads_pipe
    plain = [word for word in arguments if not word.startswith("-")]
    if program in {"source", "."}:
        return bool(plain) and (plain[0].startswith("<(") or (fed and bool(_STDIN.fullmatch(plain[0]))))
    if fed and (program in {"make", "sed", "ed", "ex"} or _AWK.fullmatch(program)):
        return bool(_FILE_FROM_STDIN.search(" ".join(arguments)))
    if fed and program in {"parallel", "sem", "at", "batch", "crontab"}:
        # Without words of their own they run the lines that they read.
        return program == "at" or all(word.startswith("-") for word in arguments)
    if fed and (
        program in {"su", "newgrp", "sg", "script", "runuser"} or (command.via and re.match(r"-[sil]", program))
    ):
        return not any(re.fullmatch(r"-[a-zA-Z]*c|--command(=.*)?", word, re.DOTALL) for word in arguments)
    if program not in INTERPRETERS:
        return False
    fed = fed or any(kind in {"<<<", "<&"} or target.text.startswith("<(") for kind, target in command.redirects)
    return (fed and not names_script(command)) or _made_script(command)


def _made_script(command: Command) -> bool:
    """A script that is a process substitution, or the words of a pipe."""
    plain = [word for word in command.arguments if not word.startswith("-")]
    if plain and plain[0].startswith("<("):
        return True
    if "xargs" not in {word.text.rpartition("/")[2] for word in command.via}:
        return False
    # Without words of its own the shell runs the first that comes; `{}` and `$0` put it where the program is.
    text_given = any(re.fullmatch(r"-[a-zA-Z]*c", word) for word in command.arguments)
    return not plain or (text_given and plain[0].lstrip().startswith(("eval", *placeholders(command))))


def downloads(run: Run, _: Sheet) -> bool:
    """Whether the command fetches by itself, is told a URL, or is inline code that could fetch."""
    command = run.command
    texts = (*command.arguments, *(word.text for _, word in command.redirects))
    wrapped = {word.rpartition("/")[2] for word in command.arguments} if command.via else set()
    if command.program in FETCHERS or (
        wrapped & FETCHERS and command.program not in (_ONLY_SAY | _PACKAGES | {"rm"}) - {""}
    ):
        # Its help, version or absence is no download.
        return not set(command.arguments) & {"--version", "--help"}
    if _asks_a_server(command) or _renames(command):
        return True
    if any(_SOCKET.search(text) for text in texts) and command.program not in {"echo", "printf", *SHELLS}:
        return True
    if any(_BUILT_SOCKET.match(word.text) for kind, word in command.redirects if "<" in kind):
        return True
    if _AWK.fullmatch(command.program):
        return any(awk_runs(text) for text in command.arguments if not text.startswith("-"))
    if command.program == "sed" and "" in sed_commands(command.arguments):
        return True
    told = any(_REMOTE.search(text) for text in command.arguments)
    if told and command.program not in _ONLY_SAY | SHELLS and not python_words(command):
        return True
    return _inline_code(command)


def _asks_a_server(command: Command) -> bool:
    given = set(command.arguments)
    if command.program == "openssl":
        return bool({"s_client", "ocsp", "s_time"} & given)
    if command.program in {"gpg", "gpg2"}:
        return any(re.match(r"--(recv|keyserver|fetch-k|search|locate|refresh|auto-key)", word) for word in given)
    if command.program == "make":
        named = [word.partition("=")[2] for word in given if word.startswith("SHELL=")]
        return any(name.rpartition("/")[2] not in SHELLS for name in named)
    return False


def _renames(command: Command) -> bool:
    """Whether a program that fetches gets another name, under which nobody would know it."""
    sources: tuple[str, ...] = ()
    if command.program in {"cp", "ln", "mv", "install", "link"}:
        sources = command.arguments[:-1]
    elif command.program in {"hash", "dd"} or (command.program == "cat" and command.redirects):
        sources = command.arguments
    asked = (re.search(r"(?:\bwhich|-[vpP])\s+([\w.-]+)", word) for word in sources if "$(" in word or "`" in word)
    return any(found and found[1] in FETCHERS for found in asked) or any(
        word.rpartition("/")[2] in FETCHERS and "bin/" in word for word in sources
    )


def awk_runs(text: str) -> bool:
    """Whether an awk program runs another: `system(…)`, `getline`, or a pipe outside of strings and patterns."""
    if re.search(r"\bsystem\s*\(|\bgetline\b", text):
        return True
    parts = re.finditer(r'"(?:\\.|[^"\\])*"|(?<![\w)\]])(?<![\w)\]] )/(?:\\.|[^/\\\n])+/|\|\||\|', text)
    return any(part[0] == "|" for part in parts)


def _inline_code(command: Command) -> bool:
    """Whether a language is given code, or a module, that reaches the network."""
    language = _language(command)
    if not (_SCRIPTED.fullmatch(command.program) or language == "make") or python_words(command):
        return False
    if language == "python":
        module = module_words(command.arguments)[0]
        named = re.search(r"(^| )-[a-zA-Z]*m", " ".join(command.arguments))
        if named and (module.partition(".")[0] in _NETWORK_MODULES or _NETWORK_CODE.search(module)):
            return module not in _SERVING_MODULES
    if not any(_INLINE.fullmatch(word) or re.match(r"-[a-zA-Z]*[ceErM]", word) for word in command.arguments):
        return False
    own = _CODE_OF.get(language)
    return any(_NETWORK_CODE.search(word) or (own and own.search(word)) for word in command.arguments)
