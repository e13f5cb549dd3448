#!/usr/bin/env python3
"""Tests the expressions of packaging/kubernetes/policy.yaml: evaluates them, in the language that the API server reads them in (CEL), for
pods that may have the socket and for pods that may not, each a good one with one change. Must never call an expression good that fails
to evaluate. Run by packaging/test.sh, which installs what manifests.py requires; usage: policy.py [POLICY [POD]]"""

import copy
import sys
from pathlib import Path

import cel
import yaml

HERE = Path(__file__).resolve().parent / "kubernetes"
# A part of the message of the rule that refuses the pod.
WHERE, WRITE, USER, GROUP, OTHERS, MIGHT = ("may mount nothing", "readOnly", "runAsUser", "runAsGroup", "supplementalGroups", "hostPID")


def at(pod, path, value):
    """The pod with a value at a path, such as spec.containers.0.name; None takes it away."""
    pod = copy.deepcopy(pod)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = pod
    for part in way:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    if value is None:
        del place[last]
    elif isinstance(place, list):
        place.append(value)
    else:
        place[last] = value
    return pod


def host(path):
    return {"name": "more", "hostPath": {"path": path}}


CONTAINER = "spec.containers.0"
MOUNT = CONTAINER + ".volumeMounts.0.readOnly"
PLAIN = {"name": "c", "image": "i", "securityContext": {"allowPrivilegeEscalation": False}}
WRITER = dict(PLAIN, volumeMounts=[{"name": "fdbroker", "mountPath": "/x"}])
ROOT = dict(PLAIN, securityContext={"allowPrivilegeEscalation": False, "runAsUser": 0})
# Changes of the shipped pod, and which rules refuse what comes of them.
TABLE = [
    ([], []),
    ([("spec.volumes.0.hostPath.path", "/run/fdbroker/")], []),
    ([("spec.volumes.9", host("/data"))], []),
    ([("spec.volumes.9", host("/run/other"))], []),
    ([("spec.volumes.9", host("/var/lib/x"))], []),
    ([("spec.volumes.9", {"name": "more", "emptyDir": {}})], []),
    ([("spec.initContainers", [PLAIN])], []),
    ([("spec.securityContext.supplementalGroups", [1000, 20002])], []),
    ([("spec.securityContext.fsGroup", 2000)], []),
    ([("spec.hostUsers", False), ("spec.securityContext.runAsUser", 0), ("spec.securityContext.runAsGroup", 0)], []),
    ([(MOUNT, False)], [WRITE]),
    ([(MOUNT, None)], [WRITE]),
    ([("spec.initContainers", [WRITER])], [WRITE]),
    ([("spec.ephemeralContainers", [WRITER])], [WRITE]),
    ([("spec.hostUsers", False), (MOUNT, False)], [WRITE]),
    ([("spec.securityContext.runAsUser", 0)], [USER]),
    ([("spec.securityContext.runAsUser", 999)], [USER]),
    ([("spec.securityContext.runAsUser", 61100)], [USER]),
    ([("spec.securityContext.runAsUser", None)], [USER]),
    ([("spec.securityContext", None)], [USER, GROUP]),
    ([(CONTAINER + ".securityContext.runAsUser", 0)], [USER]),
    ([("spec.initContainers", [ROOT])], [USER]),
    ([("spec.ephemeralContainers", [ROOT])], [USER]),
    ([("spec.hostUsers", True), ("spec.securityContext.runAsUser", 0)], [USER]),
    ([("spec.securityContext.runAsGroup", 0)], [GROUP]),
    ([("spec.securityContext.runAsGroup", 61100)], [GROUP]),
    ([(CONTAINER + ".securityContext.runAsGroup", 44)], [GROUP]),
    ([("spec.securityContext.supplementalGroups", [20002, 0])], [OTHERS]),
    ([("spec.securityContext.supplementalGroups", [61100])], [OTHERS]),
    ([("spec.securityContext.fsGroup", 27)], [OTHERS]),
    ([("spec.hostPID", True)], [MIGHT]),
    ([(CONTAINER + ".securityContext", None)], [MIGHT]),
    ([(CONTAINER + ".securityContext.allowPrivilegeEscalation", True)], [MIGHT]),
    ([(CONTAINER + ".securityContext.privileged", True)], [MIGHT]),
    ([(CONTAINER + ".securityContext.capabilities.add", ["SYS_ADMIN"])], [MIGHT]),
] + [
    ([("spec.volumes.9", host(path))], [WHERE])
    for path in ["/", "//", "/run", "/run/", "/var/run", "/var", "/run/fdbroker-admin", "/run/fdbroker-admin/admin.sock", "/run/fdbroker/broker.sock",
                 "/run//fdbroker", "//run/fdbroker", "/var/run/fdbroker", "/proc", "/proc/1/root/run/fdbroker", "/data/../run/fdbroker"]
] + [
    # In the place of the one that it may have.
    ([("spec.volumes.0.hostPath.path", path)], [WHERE]) for path in ["/", "/run", "/run/fdbroker-admin", "/var/run/fdbroker", "/proc/1/root/run"]
]
# No path of fdbroker's: not looked at.
STRANGERS = [("spec.volumes.0.hostPath.path", "/data"), ("spec.volumes.0.hostPath.path", "/run/fdbrokers"), ("spec.volumes", None)]


def true(expression, names):
    answer = cel.evaluate(expression, names)
    if answer not in (True, False):
        raise ValueError("%s is %r" % (expression, answer))
    return answer


def refusals(policy, pod):
    """The messages of the rules that refuse the pod; None: the policy does not look at it."""
    names = {"object": pod, "variables": {}}
    if not all(true(it["expression"], names) for it in policy["matchConditions"]):
        return None
    for variable in policy["variables"]:
        names["variables"][variable["name"]] = cel.evaluate(variable["expression"], names)
    return [it["message"] for it in policy["validations"] if not true(it["expression"], names)]


def main(policy=HERE / "policy.yaml", pod=HERE / "pod.yaml"):
    policy = next(yaml.safe_load_all(Path(policy).read_text()))["spec"]
    good = yaml.safe_load(Path(pod).read_text())
    wrong = 0
    for changes, expected in TABLE + [([change], None) for change in STRANGERS]:
        pod = good
        for path, value in changes:
            pod = at(pod, path, value)
        found = refusals(policy, pod)
        fits = found == expected if None in (found, expected) else (
            len(found) == len(expected) and all(part in message for part, message in zip(expected, found)))
        if not fits:
            wrong += 1
            print("%s: %s, not %s" % (changes, found, expected))
    untested = [it["message"] for it in policy["validations"] if not any(part in it["message"] for _, all in TABLE for part in all)]
    wrong += len(untested)
    print("%d pods, %d wrong; rules without a row: %s" % (len(TABLE) + len(STRANGERS), wrong, untested or "none"))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
