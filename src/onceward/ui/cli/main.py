"""`onceward`: global options, lazy commands, exit statuses (I-1)."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceward.core import faults
from onceward.core.limits import REQUEST_WAIT_SECONDS
from onceward.core.version import VERSION
from onceward.errors import OncewardError

if TYPE_CHECKING:
    from onceward.workspace import Workspace

# Where each command lives; none is imported before it is asked for. `--help` lists them in these groups.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Run work": {
        "run": ("builds", "run a plan; steps that are done are not repeated"),
        "resume": ("builds", "continue a build that crashed or was paused"),
        "spawn": ("spawn", "run one command with a budget, a lock and a time limit"),
        "saga": ("sagas", "run actions in order; undo them if one fails"),
        "cancel": ("children", "stop a build, a session or a child"),
        "abandon": ("builds", "give up a build for good"),
        "report": ("children", "inside a child: report spending and progress"),
    },
    "Watch and understand": {
        "status": ("status", "show builds, sagas, sessions and changes"),
        "list": ("builds", "list the newest builds"),
        "explain": ("explain", "describe anything by its id, with the next command"),
        "why": ("explain", "show why a step ran or was skipped"),
        "logs": ("logs", "print the output of a step, action or child"),
        "events": ("look", "print the events of a stream, or list all streams"),
        "spend": ("spend", "show costs by build, stage or day"),
        "artifacts": ("children", "list, print and save stored files"),
        "output": ("output", "write the results of a build to a folder"),
    },
    "Decide and approve": {
        "approve": ("builds", "approve or refuse a step that waits for a person"),
        "confirm": ("builds", "create a confirmation token for a paused build"),
        "grant": ("grants", "draft, issue and revoke single-use permissions"),
        "principals": ("principals", "manage people and programs, and their roles"),
        "keys": ("keys", "manage signing keys"),
        "tokens": ("tokens", "manage access tokens for the server"),
    },
    "Changes": {
        "change": ("changes", "propose, review, apply and verify changes to files"),
        "registry": ("registry", "manage the registry of versioned operations"),
    },
    "Evidence": {
        "verify": ("evidence", "check all records, or an exported file, offline"),
        "replay": ("replay", "recompute states from the records and compare"),
        "export": ("evidence", "export the evidence of a build or session to a file"),
        "seal": ("evidence", "sign the current end of every stream"),
        "gate": ("gate", "replay locked fixtures; fail if the engine behaves differently"),
    },
    "Workspace and server": {
        "init": ("workspace", "create a workspace"),
        "serve": ("serve", "run the server: kernel, API and web pages"),
        "open": ("serve", "open the pages of the running server in a browser"),
        "doctor": ("workspace", "check the workspace and report what to fix"),
        "locks": ("locks", "list target locks; clear abandoned ones"),
        "outbox": ("outbox", "show and flush events that wait for delivery"),
        "gc": ("children", "delete artifacts that nothing refers to"),
        "backup": ("workspace", "write a verified backup of the store to a file"),
        "restore": ("workspace", "restore a backup into an empty workspace"),
        "migrate": ("workspace", "upgrade the database schema"),
        "machines": ("look", "show the lifecycles as tables or diagrams"),
        "canon": ("look", "print the canonical form or digest of a JSON file"),
        "completion": ("look", "print a shell completion script"),
        "version": ("look", "print the version"),
    },
}
COMMANDS = {name: place for commands in GROUPS.values() for name, place in commands.items()}


class Globals:
    """What the global options said; opens the workspace when a command needs it."""

    def __init__(self) -> None:
        self.workspace_folder: str | None = None
        self.store_url: str | None = None
        self.principal: str | None = None
        self.json = False
        self.wait = REQUEST_WAIT_SECONDS
        self.request_id: str | None = None
        self._opened = False
        self.expires: float | None = None
        """Seconds after which a request that no kernel has taken is refused."""

    def workspace(self, *, nearest: bool = True) -> Workspace:
        from onceward.settings import find_workspace, ignored_settings
        from onceward.workspace import Workspace

        folder = find_workspace(self.workspace_folder, nearest=nearest)
        if not self.workspace_folder and not self._opened:
            ignored = ignored_settings(folder)
            if ignored:
                click.echo(ignored, err=True)
        self._opened = True
        return Workspace(
            folder,
            store_url=self.store_url,
            principal=self.principal,
            console=sys.stderr if self.json else None,
            notes=sys.stderr,
        )

    def new_request_id(self) -> str:
        return str(uuid.uuid4()) if self.request_id is None else self.request_id


pass_globals = click.make_pass_decorator(Globals, ensure=True)


def complete_build(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The ids of builds, for the shell to offer; without a workspace there are none."""
    from onceward.builds.views import build_list

    try:
        with ctx.ensure_object(Globals).workspace().reading() as store:
            names = [build.build_id for build in build_list(store)]
            return [name for name in names if name.startswith(incomplete)]
    except OncewardError:
        return []


def build_argument(required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.argument("build", required=required, shell_complete=complete_build)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None and value is not False:
            setattr(ctx.ensure_object(Globals), name, value)
        return value

    return keep


def global_options(*, outermost: bool = False) -> list[click.Option]:
    """They may stand before or after the command's name. The environment is asked once, and the command line wins."""

    def variable(name: str) -> str | None:
        return name if outermost else None

    return [
        click.Option(
            ["--workspace"],
            metavar="DIR",
            envvar=variable("ONCEWARD_WORKSPACE"),
            expose_value=False,
            callback=_keep("workspace_folder"),
            help="The workspace folder, such as project/.onceward [default: the nearest .onceward].",
        ),
        click.Option(
            ["--store"],
            metavar="URL",
            envvar=variable("ONCEWARD_STORE"),
            expose_value=False,
            callback=_keep("store_url"),
            help="The database: sqlite or a postgresql://… URL.",
        ),
        click.Option(
            ["--as"],
            metavar="PRINCIPAL",
            envvar=variable("ONCEWARD_AS"),
            expose_value=False,
            callback=_keep("principal"),
            help="Act as this principal [default: you].",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=_keep("json"),
            help="Print JSON.",
        ),
    ]


class CliCommand(click.Command):
    """A command that takes the global options too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *global_options()]


class CliGroup(click.Group):
    """A group that takes the global options too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *global_options()]


class Seconds(click.FloatRange):
    """A time to wait: not negative, not endless, and a number."""

    name = "number of seconds"

    def __init__(self, least: float = 0) -> None:
        super().__init__(least, 86_400)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if seconds != seconds:
            self.fail("not a number", param, ctx)
        return seconds


def wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """How long to wait for the kernel that lives."""
    wait = click.option(
        "--wait",
        type=Seconds(),
        default=REQUEST_WAIT_SECONDS,
        show_default=True,
        metavar="SECONDS",
        expose_value=False,
        callback=_keep("wait"),
        help="How long to wait for the running kernel to answer.",
    )
    return wait(command)


def asking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every command that has something done takes."""
    request_id = click.option(
        "--request-id",
        metavar="ID",
        expose_value=False,
        callback=_keep("request_id"),
        help="Idempotency key: the same ID again has no second effect and returns the same answer.",
    )
    expires = click.option(
        "--expires",
        type=Seconds(),
        metavar="SECONDS",
        expose_value=False,
        callback=_keep("expires"),
        help="Refuse the request if no kernel has started it within this time.",
    )
    return wait_option(request_id(expires(command)))


class LazyGroup(click.Group):
    """Knows its commands by name and imports one only when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"onceward.ui.cli.{COMMANDS[cmd_name][0]}")
        # A command whose name is also Python's own stands under it with an underscore.
        found: click.Command = getattr(
            module, f"{cmd_name}_" if hasattr(builtins, cmd_name) else cmd_name
        )
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by task; the column of names is as wide in every group."""
        width = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, (_, text) in commands.items()]
                )


@click.command(
    cls=LazyGroup,
    params=global_options(outermost=True),
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)
@click.version_option(VERSION, prog_name="onceward", message="%(prog)s %(version)s")
def cli() -> None:
    """Run agents, model calls and other paid work durably: checkpoints, budgets, approvals and signed evidence."""


def run(argv: list[str]) -> int:
    """Run one command line and answer its exit status."""
    from onceward.ui.cli import render

    as_json = "--json" in argv
    render.prepare_streams()
    try:
        faults.arm_from_environment()
        status = cli.main(argv, prog_name="onceward", standalone_mode=False, color=render.colour())
        if isinstance(status, int) and status:
            # What became of the work counts for more than whether anybody heard of it.
            return status
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (BrokenPipeError, SystemExit):
        # Whoever read us has seen enough (click turns that into an exit).
        return 0
    except (click.Abort, KeyboardInterrupt):
        render.problem("EXECUTION_FAILED", "interrupted", as_json)
        return 130
    except click.ClickException as failure:
        render.usage(failure, as_json)
        return 2
    except OncewardError as failure:
        render.error(failure, as_json)
        return failure.exit_status
    except OSError as failure:
        return _system_error(failure, as_json)
    except Exception as bug:
        if os.environ.get("ONCEWARD_TRACEBACK"):
            raise
        text = (
            f"Internal error in Onceward: {type(bug).__name__}. Set ONCEWARD_TRACEBACK=1 for a traceback, and please"
            " report it. If a request was under way, repeat it with the same --request-id to learn its outcome."
        )
        render.problem("EXECUTION_FAILED", text, as_json)
        return 1


def _system_error(failure: OSError, as_json: bool) -> int:
    """A file or folder that is not as it should be; or, after the work, an answer nobody could be given."""
    from onceward.ui.cli import render

    if failure.filename is None:
        render.problem(
            "EXECUTION_FAILED",
            f"the command ran, but its output could not be written: {failure.strerror}",
            as_json,
        )
        return 1
    render.problem("INVALID_CONFIG", f"{failure.strerror}: {failure.filename}", as_json)
    return 2


def file_argument(text: str) -> Path:
    return Path(text).expanduser()


def means_file(text: str) -> bool:
    """Whether somebody who wrote this meant a file, and not a build or session: ids may have dots, too."""
    return "/" in text or text.endswith((".tar", ".json"))
