"""The settings as a page of documentation: `python docs/site/settings.py > docs/settings.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator

from scaler.config.files import title_of
from scaler.config.monitors import TopConfig, WebUiConfig
from scaler.config.servers import ObjectStorageServerConfig, scheduler_model
from scaler.config.setting import Described, SettingsModel, describe, documentation, flag_of, group_title
from scaler.config.worker_managers import ClusterConfig, ConnectedWorkerSettings, WorkerManagerConfig, settings_model
from scaler.plugins import WORKER_MANAGERS

_INTRODUCTION = """\
# Settings

<!-- Made by `python docs/site/settings.py`; edit the models in scaler/config and make it again. -->

Every key works as a flag (`--io-threads`), as a key in a TOML file (`io_threads`) and as an environment variable
(`SCALER_<SECTION>_<KEY>`, such as `SCALER_SCHEDULER_IO_THREADS`). Flags win over the environment, the environment
over the file, and the file over the defaults. Unknown keys, sections and flags are errors that name the nearest
known one, and so is an environment variable that is nearly one of these.

| command | section | what it starts |
|---|---|---|
| `scaler`, `scaler local` | no file | a scheduler, workers and the web page on this machine |
| `scaler FILE` | all | object storage, scheduler, every worker manager, and the web server where `[webui]` stands |
| `scaler init TYPE ... -o FILE` | all | writes a commented file for worker managers of these types |
| `scaler completion bash`, also `zsh` and `fish` | none | prints a script for tab completion |
| `scaler_object_storage_server ADDRESS` | `[object_storage_server]` | an object storage |
| `scaler_scheduler ADDRESS` | `[scheduler]` | a scheduler, with an object storage inside when it is given none |
| `scaler_worker_manager TYPE ADDRESS` | `[[worker_manager]]` with `type` | a worker manager |
| `scaler_cluster ADDRESS` | `[cluster]` | a fixed set of local workers |
| `scaler_worker_adapter_native ADDRESS` | `[native_worker_adapter]` | older name of the type baremetal_native |
| `scaler_worker_adapter_symphony ADDRESS` | `[symphony_worker_adapter]` | older name of the type symphony |
| `scaler_ui ADDRESS`, also `scaler_gui` | `[webui]`, also `[gui]` | the web server of monitors |
| `scaler_top ADDRESS` | `[top]` | the monitor in a terminal; `scaler FILE` passes over its section |
| `scaler explain TASK_ID ADDRESS`, `scaler logs TASK_ID ADDRESS` | `[top]` | why a task waits or what became of it; \
what it printed |
| `scaler trace FILE ADDRESS` | `[top]` | the timeline, for Perfetto or Chrome |

All commands take `-c FILE` or `--config FILE`, `-h` and `--version`. They end with exit code 0 when they were asked
to, 2 when something about their settings is wrong, and 1 when they failed. Each command passes over the
sections of others.

In the file of `scaler FILE`, `scheduler_address` of workers, `object_storage_address` of the scheduler and
`monitor_address` of the web server may be left out: they are those of the same file. When a file has several worker
managers of one type, `scaler_worker_manager TYPE` takes the one that `--worker-manager-id` names.

Addresses are `tcp://host:port` or `ipc://path`. Monitors (`[webui]`, `[top]`) and clients also take the name of a
running cluster of the same user, which `scaler local` and `scaler FILE` print when they start. `-1` stands for no
limit where a default says so. Truth values are `true` and `false`; a flag alone, such as `-hps`, means true. Several
log files are several words after `-lp`, a list in TOML, and separated by commas in the environment. In every path,
`~` is the home directory of the user that runs the process, and relative paths start at its working directory.
"""


def settings_page() -> str:
    """Return the whole page as Markdown."""
    of_every_type = set(describe(WorkerManagerConfig))
    pages = [
        _section(ObjectStorageServerConfig),
        _section(scheduler_model()),
        _section(WorkerManagerConfig, " of every type"),
    ]
    for kind in WORKER_MANAGERS.built_in:
        model = settings_model(kind)
        shared = of_every_type - set(inspect.get_annotations(model)) | {"type"}
        pages.append(_section(model, f" of the type {kind}", shared))
    return "".join(
        [
            _INTRODUCTION,
            *pages,
            _section(ClusterConfig, without=set(describe(ConnectedWorkerSettings))),
            "\nBeside these, every key of [[worker_manager]] under Workers, Logging, and the processors of workers.\n",
            _section(WebUiConfig),
            _section(TopConfig),
        ]
    )


def _section(model: type[SettingsModel], of: str = "", without: Collection[str] = ()) -> str:
    lines = [f"\n## {title_of(model.section)}{of}\n\nEnvironment: `SCALER_{model.section.upper()}_<KEY>`.\n", _HEAD]
    documented = documentation(model)
    group = group_title(model)
    for item in describe(model).values():
        if item.name in without:
            continue
        if item.group != group:
            group = item.group
            lines.append(f"\n**{group}**\n{_HEAD}")
        lines.append(f"| {' | '.join(_cells(item, documented[item.name]))} |\n")
    return "".join(lines)


_HEAD = "\n| key | flag | default | meaning |\n|---|---|---|---|\n"


def _cells(item: Described, text: str) -> Iterator[str]:
    aliases = [alias.name for alias in item.setting.aliases]
    yield f"`{item.name}`" + "".join(f", also `{name}`" for name in aliases)
    if item.name == "type":
        yield "the first argument"
        yield "required"
    else:
        flags = [*item.setting.short_flags.split(), item.flag, *map(flag_of, aliases)]
        yield ("the argument, or " if item.setting.positional else "") + " ".join(f"`{flag}`" for flag in flags)
        yield item.default_text or "required"
    yield text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(settings_page())
