"""The fds of this process. Must never import torch: it reads its settings when it is loaded."""

import os
import resource


def nvidia_fds():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("nvidia" in os.readlink(link) for link in links if os.path.islink(link))


def limit_fds(most):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, max(hard, most)))
