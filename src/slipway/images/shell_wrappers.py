"""Programs that run the program named after them (`sudo`, `env`, `xargs`, `timeout` …), and which words are their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHELLS = frozenset({
    "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox-sh", "rbash", "rksh", "ksh93", "lksh", "oksh", "posh", "yash",
    "fish", "csh", "tcsh", "pwsh", "xonsh", "bash-static", "zsh-static", "sash",
})  # fmt: skip

# Program → how many plain words of its own come before the other program, and its options whose value is the next word.
_WRAPPERS: dict[str, tuple[int, str]] = {
    "sudo": (0, "-u -g -h -p -C -T -r -t -D -R -U --user --group --host --prompt --close-from --chdir --chroot --role --type "
                "--command-timeout --other-user"),
    "doas": (0, "-u -C"), "pkexec": (0, "--user"),
    "env": (0, "-u -C --unset --chdir"),
    "exec": (0, "-a"), "command": (0, ""), "builtin": (0, ""), "nohup": (0, ""), "noglob": (0, ""), "nocorrect": (0, ""),
    "nice": (0, "-n --adjustment"), "ionice": (0, "-c -n -p -P -u --class --classdata"),
    "time": (0, "-f -o --format --output"),
    "xargs": (0, "-a -d -E -I -L -n -P -s --arg-file --delimiter --max-args --max-procs --max-chars --process-slot-var"),
    "stdbuf": (0, "-i -o -e --input --output --error"), "eatmydata": (0, ""), "setsid": (0, ""),
    "setpriv": (0, "--reuid --regid --groups --inh-caps --ambient-caps --bounding-set --securebits --pdeathsig "
                   "--selinux-label --apparmor-profile"),
    "unshare": (0, "-S -G -R -w --setuid --setgid --root --wd --map-user --map-group --map-users --map-groups --setgroups "
                   "--propagation"),
    "nsenter": (0, "-t -S -G --target --setuid --setgid"),
    "busybox": (0, ""), "toybox": (0, ""), "coproc": (0, ""), "function": (1, ""),
    "strace": (0, "-a -b -e -E -I -o -O -p -P -s -S -u -U -X"), "ltrace": (0, "-a -A -D -e -F -l -n -o -p -s -u -x"),
    "fakeroot": (0, "-l -s -i -b --lib --faked"), "fakechroot": (0, "-l -d -e -c -b --lib --elfloader --environment"),
    "setarch": (0, ""), "linux32": (0, ""), "linux64": (0, ""), "i386": (0, ""), "x86_64": (0, ""),
    "watch": (0, "-n --interval -q"), "parallel": (0, "-j -n -N -a -S -L --jobs --max-args --arg-file --colsep -C"),
    "sem": (0, "-j --jobs --id"),
    "taskset": (1, ""), "chrt": (1, "-T -P -D --sched-runtime --sched-period --sched-deadline"),
    "ld.so": (0, "--library-path --preload --audit --argv0 --inhibit-rpath"),
    "timeout": (1, "-s -k --signal --kill-after"), "gosu": (1, ""), "su-exec": (1, ""), "setuidgid": (1, ""),
    "s6-setuidgid": (1, ""), "chroot": (1, "--userspec --groups"),
    "flock": (1, "-w -E --wait --timeout --conflict-exit-code"),
    "runuser": (0, "-u -g -G -w --user --group --supp-group --whitelist-environment"),
    "tini": (0, "-p -e"), "dumb-init": (0, "-r --rewrite"), "catatonit": (0, ""), "catchsegv": (0, ""),
    "choom": (0, "-n -p --adjust --pid"), "prlimit": (0, "-p -o --pid --output"),
    "numactl": (0, "-i -N -m -C -p -P -w --interleave --cpunodebind --membind --physcpubind --preferred"),
    "uclampset": (0, "-m -M -p"), "runcon": (0, "-t -u -r -l"), "valgrind": (0, ""), "unbuffer": (0, ""),
    "torsocks": (0, "-u -p -a -P"), "torify": (0, ""), "tsocks": (0, ""), "proxychains": (0, "-f"), "chronic": (0, ""),
    "ssh-agent": (0, "-a -t -E -P"), "dbus-run-session": (0, "--config-file --dbus-daemon"), "cgexec": (0, "-g"),
    "aa-exec": (0, "-p -n --profile --namespace"), "rlwrap": (0, ""), "softlimit": (0, "-a -c -d -f -l -m -o -p -r -s -t"),
    "chpst": (0, "-u -U -b -e -/ -n -l -L -m -d -o -p -f -c -r -t -C"), "with-contenv": (0, ""), "annotate-output": (0, ""),
}  # fmt: skip
_VALUED = {name: frozenset(options.split()) for name, (_, options) in _WRAPPERS.items()}
_ALIASES = (
    (re.compile(r"ld-linux[\w.-]*|ld-musl[\w.-]*|ld-\d[\w.-]*"), "ld.so"),
    (re.compile(r"busybox[._-]\w+"), "busybox"),
    (re.compile(r"tini-\w+"), "tini"),
    (re.compile(r"proxychains\d"), "proxychains"),
    (re.compile(r"qemu-[\w-]+"), "valgrind"),
)

LOOSE = frozenset({
    "bwrap", "proot", "firejail", "systemd-run", "perf", "cpulimit", "faketime", "logsave", "retry", "hyperfine", "xvfb-run",
    "expect", "crond", "at", "batch", "ip", "start-stop-daemon", "daemonize", "daemon", "entr", "gdb", "rr", "runcon",
    "schroot", "systemd-nspawn", "unbuffer", "trickle", "ts", "ifne", "setlock", "s6-envdir", "execlineb", "multirun", "pdsh",
})  # fmt: skip
"""Programs that run another, whose own words are too many to know: every word of theirs may be the program."""

ASSIGNMENT = re.compile(r"\w+(\[[^\]]*\])?\+?=.*", re.DOTALL)


def names(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


def base_name(word: str) -> str:
    """The program's name without its folder."""
    return word.rpartition("/")[2]


def wrapper(word: str) -> str:
    """The wrapper that `word` names, by its usual name; "" when it names none."""
    name = base_name(word)
    if name in _WRAPPERS:
        return name
    return next((usual for pattern, usual in _ALIASES if pattern.fullmatch(name)), "")


def own_words(words: Sequence[str], start: int) -> int:
    """How many words from `start` on belong to a wrapper: its name, options, assignments; 0 when there is none.

    At least one word is left for the program.
    """
    name = wrapper(words[start])
    last = len(words) - 1
    if not name or start >= last:
        return 0
    if name == "command" and re.match(r"-p?[vV]", words[start + 1]):
        return 0
    if name == "runuser" and not any(re.match(r"-\w*u|--user", word) for word in words[start + 1 : start + 8]):
        return 0
    at = start + 1
    while at < last and (words[at].startswith("-") or ASSIGNMENT.fullmatch(words[at])):
        at += 1
        if words[at - 1] == "--":
            break
        if at < last and _takes_next(words[at - 1], _VALUED[name]):
            at += 1
    for _ in range(_WRAPPERS[name][0]):
        at += at < last
    # `flock FILE -- program`, `env -- A=1 program`
    while at < last and (words[at] == "--" or (name == "env" and ASSIGNMENT.fullmatch(words[at]))):
        at += 1
    return at - start


def _takes_next(option: str, valued: frozenset[str]) -> bool:
    """Whether the next word is the value of `option`: not where it is attached, as in `-n5` or `--user=x`."""
    if option in valued:
        return True
    if option.startswith("--"):
        # The first letters of a long option are enough.
        return len(option) > 2 and any(name.startswith(option) for name in valued)
    for index, letter in enumerate(option[1:], start=1):
        if f"-{letter}" in valued:
            return index == len(option) - 1
    return False
