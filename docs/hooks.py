"""Pages that mkdocs generates from the code at build time, and the check that the site needs no network.

``generated`` maps the path of each page to its Markdown: the public names (for mkdocstrings), the command
line's help, the settings, the HTTP API, the modules, the changelog and the architecture. ``search_words`` gives each
page the words of the glossary by which the site's search finds it.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
import types
import typing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
METHODS = ("get", "put", "post", "patch", "delete")

GROUPS = {
    "The memory of a task": ("Memory",),
    "Memory in a loop": (
        "Memory",
        "apply_memory_bank_strategy",
        "MemoryBankState",
        "MemoryBankSettings",
        "Config",
        "load_config",
        "MemoryProcessor",
        "LLMOrchestrator",
    ),
    "Tools for the agent": (
        "TOOL_SCHEMAS",
        "memory_tools",
        "handle_tool_call",
        "is_memory_tool",
    ),
    "Plans and reports": ("Plan", "Decision", "Fate"),
    "Stores and records": ("InteractionRecord", "Insight", "FactStore", "InsightStore"),
    "Single steps": (
        "extract_tool_outputs",
        "observe_tool_output",
        "ingest_tool_outputs",
        "retrieve_and_format",
        "format_retrieved_memory",
        "load_embedder",
        "LexicalEmbedder",
    ),
}

MEMBERS = {  # the documented part of classes that have more for the library itself
    "MemoryBankState": ("open", "pending", "reset", "flush", "close"),
    "Config": ("strategy",),
    "MemoryBankSettings": (),  # on the page of settings
}


def directive(name: str) -> list[str]:
    """A public name of ``memory_bank`` as a directive for mkdocstrings."""
    lines = ["", f"::: memory_bank.{name}"]
    if name in MEMBERS:
        lines += ["    options:", f"      members: {json.dumps(MEMBERS[name])}"]
    return lines


def library_page() -> str:
    """The public names of ``memory_bank``, in groups, as directives for mkdocstrings."""
    import memory_bank
    from memory_bank import errors, history

    apart = {n for n in memory_bank.__all__ if hasattr(errors, n) or n in history.__all__}
    grouped = {name for names in GROUPS.values() for name in names}
    groups = GROUPS | {"More": tuple(n for n in memory_bank.__all__ if n not in grouped | apart)}
    lines = [
        "# Library",
        "",
        f"What `import memory_bank` gives. [Errors](errors.md), [typed histories](history.md) and "
        f"[fakes for tests](testing.md) have pages of their own. Version {memory_bank.__version__}.",
    ]
    for title, names in groups.items():
        public = [n for n in names if n in memory_bank.__all__]
        if public:
            lines += ["", f"## {title}"]
            lines += [part for n in public for part in directive(n)]
    return "\n".join(lines) + "\n"


def module_page(title: str, module: str, intro: str) -> str:
    """All public names of one module, as directives for mkdocstrings."""
    import importlib

    names = getattr(importlib.import_module(module), "__all__", None)
    lines = [f"# {title}", "", intro]
    if names is None:
        lines += ["", f"::: {module}", "    options:", "      show_root_heading: false"]
    else:
        lines += [part for n in names for part in ("", f"::: {module}.{n}")]
    return "\n".join(lines) + "\n"


CLI_INTRO = """\
# Command line

What `memory-bank VERB --help` prints. Verbs that print results take `--json`. Exit codes: 0 success, 1 failure,
2 wrong usage, 130 Ctrl-C. An error is one sentence on standard error."""


def cli_page() -> str:
    """The help of `memory-bank` and of each of its verbs."""
    import typer.main

    from memory_bank.cli.app import app

    lines = [CLI_INTRO]

    def add(command: Any, name: str, parent: Any) -> None:
        context = command.context_class(command, info_name=name, parent=parent, terminal_width=72)
        level = "#" * (2 if parent is None or parent.parent is None else 3)
        lines.extend(["", f"{level} {context.command_path}", "", "```text", command.get_help(context), "```"])
        for sub in getattr(command, "commands", {}).items():
            add(sub[1], sub[0], context)

    add(typer.main.get_command(app), "memory-bank", None)
    return "\n".join(lines) + "\n"


def type_name(annotation: Any) -> str:
    """A setting's type as its TOML user would say it."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(args[0])
    if origin is typing.Literal:
        return ", ".join(f'`"{a}"`' for a in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(a) for a in args if a is not type(None)))
    if origin in (list, tuple):
        return "list of " + type_name(args[0])
    if origin is dict:
        return "table"
    known = {str: "text", int: "integer", float: "number", bool: "true or false"}
    return known.get(annotation, "table")


def cell(text: str) -> str:
    """A text that may stand in a cell of a Markdown table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def settings_table(model: Any) -> list[str]:
    """The fields of a pydantic model as a table."""
    from memory_bank import config

    lines = ["", "| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if name in ("type", "memory_strategies", "service"):
            continue
        default = field.get_default(call_default_factory=True)
        if field.is_required():
            shown = "required"
        elif default is None:
            shown = "none"
        else:
            plain = json.dumps(default, default=lambda v: v.model_dump(exclude_defaults=True))
            shown = f"`{plain}`"
        lines.append(
            f"| `{name}` | {type_name(field.annotation)} | {shown} | {cell(config.meaning(model, name))} |"
        )
    return lines


SETTINGS_INTRO = """\
# Settings

The settings of a configuration file, of `load_config(FILE)` and of `--config FILE`. A file [changes the shipped
configuration](../howto/strategies.md#a-configuration-file) setting by setting, and `memory-bank config --all` prints
what is in effect. The environment overrides single values: `MEMORY_BANK_` and the path of the setting, parts joined
by two underscores, as in `MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__TOP_K=5` and `MEMORY_BANK_SERVICE__PORT=0`.
Lists and tables are JSON there. An unknown setting is an error that names the nearest known one.

A strategy of your own has the defaults below where it leaves a setting out, and so have the shipped ones: one
of each type, under its name, except that `memory_bank` needs no model (`{memory_bank}`),
`memory_bank_classic` has the defaults, and `memory_bank_local` is the same without a model.

## General"""


def settings_page() -> str:
    """Every setting with its type, default and description, and the shipped config.toml."""
    from memory_bank import config

    def first_line(model: Any) -> str:
        return (model.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")

    shipped = ", ".join(f'{k} = "{v}"' for k, v in config.SHIPPED["memory_bank"].items())
    lines = [
        SETTINGS_INTRO.replace("{memory_bank}", shipped),
        *settings_table(config.Config),
    ]
    models = typing.get_args(config.AnyStrategy)
    for model in sorted(models, key=lambda m: m is not config.MemoryBankSettings):
        kind = model.model_fields["type"].default
        lines += ["", f'## type = "{kind}"', "", f"`[memory_strategies.KEY]`: {first_line(model)}"]
        if set(model.model_fields) == {"type"}:
            lines += ["", "No further settings."]
        else:
            lines += settings_table(model)
    for title, model in (("Prices", config.Price),):
        lines += ["", f"## {title}", "", first_line(model), *settings_table(model)]
    lines += ["", "## service", "", "`[service]`: settings of `memory-bank serve`."]
    lines += [*settings_table(config.ServiceSettings), "", "## config.toml", ""]
    lines += [
        "What people set, a file to begin with:",
        "",
        "```toml",
        (ROOT / "config.toml").read_text().rstrip(),
        "```",
    ]
    return "\n".join(lines) + "\n"


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the service."""
    from memory_bank.config import Config
    from memory_bank.service.app import create_app

    document: dict[str, Any] = create_app(Config()).openapi()
    return document


def schema_name(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words, with links to the named ones."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(schema_name(s) for s in schema[key]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(v)}`" for v in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {schema_name(schema.get('items', {}))}"
    kind = schema.get("type", "any JSON value")
    return " or ".join(kind) if isinstance(kind, list) else kind


def schema_table(schema: dict[str, Any]) -> list[str]:
    """The properties of an object's schema as a table."""
    if "properties" not in schema:
        return ["", schema_name(schema)]
    needed = schema.get("required", ())
    lines = ["", "| field | type | | meaning |", "|---|---|---|---|"]
    for name, part in schema["properties"].items():
        must = "required" if name in needed else ""
        lines.append(f"| `{name}` | {schema_name(part)} | {must} | {cell(part.get('description', ''))} |")
    return lines


def answers_table(answers: dict[str, Any]) -> list[str]:
    """The responses of an operation as a table."""
    lines = ["| status | answer | body |", "|---|---|---|"]
    for status, answer in answers.items():
        bodies = "; ".join(schema_name(c.get("schema", {})) for c in answer.get("content", {}).values())
        lines.append(f"| {status} | {cell(answer.get('description', ''))} | {bodies} |")
    return lines


def http_page() -> str:
    """The routes and schemas of the service, from its OpenAPI document."""
    document = openapi()
    lines = ["# HTTP API", "", document["info"].get("description", "").strip(), ""]
    lines.append(
        "The service gives this document as JSON at `/openapi.json`. Examples: "
        "[the HTTP API](../howto/http-api.md)."
    )
    every = [o["responses"] for p in document["paths"].values() for m, o in p.items() if m in METHODS]
    shared = {
        status for status in every[0] if all(answers.get(status) == every[0][status] for answers in every)
    }
    lines += ["", "Every route may also return", "", *answers_table({s: every[0][s] for s in sorted(shared)})]
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method not in operations:
                continue
            operation = operations[method]
            lines += ["", f"## {method.upper()} {path}", "", operation.get("summary", "")]
            lines += ["", operation.get("description", "")]
            if parameters := operation.get("parameters"):
                lines += ["", "| parameter | in | type | meaning |", "|---|---|---|---|"]
                for p in parameters:
                    meaning = p.get("description", "") or p["schema"].get("description", "")
                    lines.append(
                        f"| `{p['name']}` | {p['in']} | {schema_name(p['schema'])} | {cell(meaning)} |"
                    )
            for kind, body in operation.get("requestBody", {}).get("content", {}).items():
                lines += ["", f"Body (`{kind}`): {schema_name(body.get('schema', {}))}"]
            own = {s: a for s, a in operation["responses"].items() if s not in shared}
            lines += ["", *answers_table(own)]
    lines += ["", "## Schemas"]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += ["", f"### {name}", "", schema.get("description", ""), *schema_table(schema)]
    return "\n".join(lines) + "\n"


def modules_page() -> str:
    """Every module of the package with its length and the first line of its docstring."""
    package = ROOT / "src" / "memory_bank"
    lines = [MODULES_INTRO]
    folders = [package, *sorted(p for p in package.rglob("*") if p.is_dir() and (p / "__init__.py").exists())]
    for folder in folders:
        paths = [p for p in sorted(folder.glob("*.py")) if not p.name.startswith("__")]
        about = first_line_of(folder / "__init__.py")
        if not about:  # migrations are described by their names
            continue
        lines += ["", f"## {folder.relative_to(package.parent).as_posix()}/", "", about]
        lines += ["", "| module | lines | what it holds |", "|---|---:|---|"] if paths else []
        for path in paths:
            length = path.read_text().count("\n")
            lines.append(
                f"| `{path.relative_to(package).as_posix()}` | {length} | {cell(first_line_of(path))} |"
            )
    return "\n".join(lines) + "\n"


MODULES_INTRO = """\
# Modules

Every module of the package with the first line of its docstring. [Architecture](architecture.md) shows which
folder may import which."""


def first_line_of(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].replace("``", "`")


def included(name: str) -> str:
    """A page of the repository's root, its links made relative to the site."""
    return (ROOT / name).read_text().replace("](docs/", "](")


def generated() -> dict[str, str]:
    """The generated pages: path within the site → Markdown."""
    return {
        "reference/library.md": library_page(),
        "reference/errors.md": module_page(
            "Errors", "memory_bank.errors", "All errors of the library, `memory_bank.errors`."
        ),
        "reference/history.md": module_page(
            "Typed histories", "memory_bank.history", "Steps and prunings, `memory_bank.history`."
        ),
        "reference/testing.md": module_page(
            "Testing", "memory_bank.testing", "Fakes that speak the real protocols, `memory_bank.testing`."
        ),
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "reference/http.md": http_page(),
        "changelog.md": included("CHANGELOG.md"),
        "architecture.md": included("ARCHITECTURE.md"),
        "modules.md": modules_page(),
    }


class Loads(HTMLParser):
    """Collects what a page loads from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes scripts, styles, images and frames with an absolute address."""
        values = dict(attrs)
        loads = tag in ("script", "img", "iframe", "source") or values.get("rel") in (
            "stylesheet",
            "preconnect",
        )
        for name in ("src", "href"):
            if loads and re.match(r"(https?:)?//", values.get(name) or ""):
                self.elsewhere.append(f"<{tag} {name}={values[name]}>")


def search_words() -> dict[str, list[str]]:
    """The first column of the glossary by page."""
    rows = re.findall(
        r"^\| (.+?) \| .* \| \[.*\]\(([\w/-]+\.md)", (ROOT / "docs/glossary.md").read_text(), re.M
    )
    words: dict[str, list[str]] = {}
    for phrases, page in rows:
        words.setdefault(page, []).extend(phrases.split(", "))
    return words


def on_config(config: Any) -> Any:
    """Say the version, and link to the repository once pyproject.toml names one (called by mkdocs)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address = project.get("urls", {}).get("Repository")
    config.repo_url = address
    shown = f"{project['name']} {project['version']}, {project['license']}."
    config.copyright = shown if address else f"{shown} No repository or package is published yet."
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Give a page its search words; decisions come after all other pages (called by mkdocs)."""
    if words := search_words().get(page.file.src_uri):
        page.meta["tags"] = words
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"boost": 0.2}
    return markdown


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages (called by mkdocs)."""
    from mkdocs.structure.files import File

    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_post_build(config: Any) -> None:
    """Fail when a page loads something from another host or shows unread markup (called by mkdocs)."""
    from mkdocs.exceptions import PluginError

    for page in Path(config.site_dir).rglob("*.html"):
        html = page.read_text()
        parser = Loads()
        parser.feed(html)
        if parser.elsewhere:
            raise PluginError(f"{page.name} loads from another host: {parser.elsewhere}")
        if left := re.search(r"<p>(\w+::|///.*)</p>", html):
            raise PluginError(f"{page.name} shows markup that no extension read: {left[1]}")
