"""Exit codes of a process that a signal ended, as a shell reports them; imports nothing heavy."""

import signal

EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
