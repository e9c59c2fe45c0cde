"""Where a test wants the run to die or AWS to say no; counted in provider calls, so that no test waits for a time.

SLIPWAY_STANDIN_CALLS  a file that gets one line for each create, update and delete, over all processes of a run
SLIPWAY_STANDIN_KILL   N:before, N:middle or N:after: at the N-th of them, before AWS was asked, after the first of its
                       calls, or after the last one and before the engine hears of it, the engine's process group gets SIGKILL
SLIPWAY_STANDIN_FAIL   method=Code, as run_instances=InsufficientInstanceCapacity: AWS answers with that error
"""

import fcntl
import os
import signal
import threading

from botocore.exceptions import ClientError

TEXTS = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient capacity in the Availability Zone you requested.",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows.",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
}


class Moments:
    def __init__(self):
        self.file = os.environ.get("SLIPWAY_STANDIN_CALLS")
        number, _, self.phase = os.environ.get("SLIPWAY_STANDIN_KILL", "").partition(":")
        self.number = int(number or 0)
        self.fails = dict(pair.split("=") for pair in os.environ.get("SLIPWAY_STANDIN_FAIL", "").split(",") if pair)
        self.here = threading.local()

    def begin(self, what):
        """One provider call begins; `what` names it in the file."""
        self.here.number = self._count(what)
        self._die("before")

    def middle(self):
        """The first of the call's requests was answered."""
        self._die("middle")

    def end(self):
        """AWS has done everything, and the engine does not know it yet."""
        self._die("middle")  # a call of one request has no other middle
        self._die("after")
        self.here.number = 0

    def may_fail(self, method):
        code = self.fails.get(method)
        if code:
            answer = {
                "Error": {"Code": code, "Message": TEXTS.get(code, code)},
                "ResponseMetadata": {"HTTPStatusCode": 400},
            }
            raise ClientError(answer, "".join(word.capitalize() for word in method.split("_")))

    def _count(self, what):
        if not self.file:
            return 0
        with open(self.file, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = sum(1 for _ in file) + 1
            file.write(f"{number} {what}\n")
        return number

    def _die(self, phase):
        if self.number and phase == self.phase and getattr(self.here, "number", 0) == self.number:
            os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
            os._exit(137)
