#!/usr/bin/env python3
"""Checks a manifest of packaging/kubernetes against the published schemas: Kubernetes' own, the ServiceMonitor of the Prometheus
operator, the Container Device Interface. Unknown keys are errors. Must never accept a kind of object that it has no schema for.
Run by packaging/test.sh, which installs REQUIREMENTS; usage: manifests.py CDI_SCHEMA_DIR FILE."""

import json
import sys
from pathlib import Path

# Packages of PyPI that carry the schemas.
# The last one evaluates the expressions of policies, for policy.py.
REQUIREMENTS = ["kubernetes-validate==1.37.0", "cloudcoil-models-prometheus-operator==0.80.1.0", "common-expression-language==0.10.0"]
# The oldest and the newest release of Kubernetes that the manifests are for.
KUBERNETES = ["1.30", "1.37"]


def check_cdi(document, folder):
    import jsonschema
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    schema = json.loads((folder / "schema.json").read_text())
    definitions = Resource.from_contents(json.loads((folder / "defs.json").read_text()), DRAFT7)
    registry = Registry().with_resource("defs.json", definitions)
    jsonschema.Draft7Validator(schema, registry=registry).validate(document)


def check_monitor(document):
    from cloudcoil.models.prometheus_operator import v1

    v1.ServiceMonitor.model_validate(document, extra="forbid")


def check(document, folder):
    if "cdiVersion" in document:
        check_cdi(document, folder)
    elif document["kind"] == "ServiceMonitor":
        check_monitor(document)
    else:
        import kubernetes_validate

        for version in KUBERNETES:
            kubernetes_validate.validate(document, version, strict=True)


def main(folder, file):
    import yaml

    for document in yaml.safe_load_all(Path(file).read_text()):
        check(document, Path(folder))
        print("%s %s: as its schema says" % (document["kind"], document.get("metadata", {}).get("name", "")))


if __name__ == "__main__":
    if sys.argv[1:] == ["--requirements"]:
        print("\n".join(REQUIREMENTS))
    else:
        main(*sys.argv[1:])
