"""Task environments: uploaded modules, required packages, and differences in package versions.

client.upload -> upload.py: an archive -> uploaded.py: modules that a processor imports from it
requirements of a worker -> installer.py: installed packages
requirements of a task -> listed.py -> Spec -> agent.py -> prepare.py -> installer.py, then a fork server;
EnvironmentState -> core.py: tasks wait
packages.py: packages that a function imports -> Spec -> packages.py in a processor -> agent.py -> PackagesDiffer ->
core.py: a notice for the client, and an incident
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "environment",
    scheduler="scaler.extensions.environment.core:Packages",
    agent="scaler.extensions.environment.agent:report_packages",
    questions="scaler.extensions.environment.upload:UploadCalls",
    own={
        "packages": "scaler.extensions.environment.packages",
        "use": "scaler.extensions.environment.installer:use",
        "listed": "scaler.extensions.environment.listed:requirements_of",
        "uploaded": "scaler.extensions.environment.uploaded",
    },
)
