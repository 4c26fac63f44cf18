"""Finds secrets of known forms in text: provider keys, tokens, private keys, passwords.

A search starts at a fixed word (a prefix such as ``sk-``, a name such as ``password``), which is cheap if the
text does not have it, and continues with an expression of bounded length. The time is therefore linear in the
length of any text. The package detect-secrets does not fit: it gives lines instead of positions, reports
three findings in an ordinary line of JSON, and takes 10 s for 1 MB.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Sequence

Span = tuple[int, int, str]  # from, to, kind

_LONGEST = 4_000  # characters of a value that follows its name
_PIECE = 250_000  # characters searched at once: Python runs no other thread during a search
_ANYWHERE = frozenset((  # words that begin a secret also inside other words
    "://", ":5432:", "Q~", ".atlasv1.", ":AA", "?key=", "&key=", "_pat", "password", "passwort", "passwd", "secret",
    "token", "api_key", "apikey",
))  # fmt: skip
_Search = tuple[str, str, re.Pattern[str]]  # a word, the kind of secret that begins there, its expression


def _searches(*forms: tuple[str, str, str]) -> list[_Search]:
    """Searches for forms of secrets: kind, first words, and the expression, whose group is redacted if it has one."""
    compiled = [(kind, words.split(), re.compile(pattern, re.ASCII)) for kind, words, pattern in forms]
    return [(word, kind, pattern) for kind, words, pattern in compiled for word in words]


_SEARCHES = _searches(
    ("memory_bank key", "mb_", r"mb_[0-9a-f]{8,32}_[\w-]{20,200}"),
    ("anthropic key", "sk-ant-", r"sk-ant-[\w-]{16,500}"),
    ("openai key", "sk-proj- sk-svcacct- sk-admin-", r"sk-[a-z]{4,8}-[\w-]{20,500}"),
    # also of other providers
    ("openai key", "sk-", r"sk-(?:or-v\d-)?(?=[A-Za-z]{0,60}\d)[A-Za-z0-9]{20,500}"),
    ("aws key", "AKIA ASIA", r"A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    (
        "aws key",  # the secret in the cell after the id
        "AKIA ASIA",
        r"A[KS]IA[A-Z0-9]{16}[\"']?[ \t]{0,4}[,;|\t:][ \t]{0,4}[\"']?([A-Za-z0-9+/]{40})(?![A-Za-z0-9+/])",
    ),
    # .pgpass
    ("password", ":5432:", r":5432:[^\s:]{1,64}:[^\s:]{1,64}:((?=[^\s:\d]{0,100}\d)[^\s:]{6,200})(?!\S)"),
    ("github token", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{30,500}"),
    ("github token", "github_pat_", r"github_pat_\w{22,500}"),
    (
        "gitlab token",
        "glpat- glrt- gldt- glcbt- glptt- glft- glsoat- glagent-",
        r"gl[a-z]{2,5}-[\w.-]{20,300}",
    ),
    ("openai key", "sess-", r"sess-[A-Za-z0-9]{40,60}"),
    ("model api key", "gsk_", r"gsk_[A-Za-z0-9]{40,80}"),
    ("model api key", "xai-", r"xai-[A-Za-z0-9]{60,120}"),
    ("model api key", "pplx-", r"pplx-[A-Za-z0-9]{40,80}"),
    ("model api key", "r8_", r"r8_[A-Za-z0-9]{30,60}"),
    ("model api key", "fw_", r"fw_(?=[A-Za-z]{0,30}\d)[A-Za-z0-9]{20,60}(?![A-Za-z0-9_])"),
    ("model api key", "nvapi-", r"nvapi-[\w-]{40,100}"),
    ("tavily key", "tvly-", r"tvly-[\w-]{20,100}"),
    ("google key", "1//0", r"1//0[\w-]{40,200}"),
    ("azure key", "sig=", r"sig=([A-Za-z0-9%+/]{30,200}(?:%3D|=){0,2})"),
    ("azure key", "Q~", r"(?<=\d)Q~[\w.~-]{31,34}(?![\w.~-])"),
    ("azure key", "AccountKey=", r"AccountKey=([A-Za-z0-9+/]{40,120}={0,2})"),
    ("digitalocean token", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[0-9a-f]{40,100}"),
    ("vault token", "hvs. hvb. hvr.", r"hv[sbr]\.[\w-]{20,300}"),
    ("terraform token", ".atlasv1.", r"\.atlasv1\.[\w-]{40,100}"),
    ("databricks token", "dapi", r"dapi[0-9a-f]{32}(?:-\d)?(?![0-9a-z])"),
    ("linear key", "lin_api_", r"lin_api_[A-Za-z0-9]{30,60}"),
    ("notion token", "ntn_", r"ntn_[A-Za-z0-9]{40,60}"),
    ("notion token", "secret_", r"secret_(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{43}(?![A-Za-z0-9])"),
    ("airtable token", "pat", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    ("sendgrid key", "SG.", r"SG\.[\w-]{16,32}\.[\w-]{30,60}"),
    ("mailgun key", "key-", r"key-[0-9a-f]{32}(?![0-9a-z])"),
    ("twilio key", "SK", r"SK[0-9a-f]{32}(?![0-9a-z])"),
    ("telegram token", ":AA", r"(?<=\d):(AA[\w-]{32,34})(?![\w-])"),
    ("discord token", "MD MT Mj Mz ND NT Nj Nz OD OT", r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}(?![\w-])"),
    ("shopify token", "shpat_ shpss_ shppa_ shpca_", r"shp[a-z]{2}_[0-9a-fA-F]{32}"),
    ("square token", "EAAA", r"EAAA[\w-]{56,64}(?![\w-])"),
    ("docker token", "dckr_pat_", r"dckr_pat_[\w-]{20,60}"),
    ("rubygems key", "rubygems_", r"rubygems_[0-9a-f]{48}"),
    ("figma token", "figd_", r"figd_[\w-]{30,80}"),
    ("grafana token", "glsa_", r"glsa_[A-Za-z0-9]{32}_[A-Za-z0-9]{8}"),
    ("new relic key", "NRAK-", r"NRAK-[A-Z0-9]{27}"),
    ("postman key", "PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    ("sentry token", "sntrys_ sntryu_", r"sntry[su]_[\w+/=-]{40,500}"),
    ("doppler token", "dp.pt. dp.st. dp.ct. dp.sa.", r"dp\.[a-z]{2}\.(?:[\w-]{2,35}\.)?[A-Za-z0-9]{40,44}"),
    ("planetscale token", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"pscale_[a-z]{2,5}_[\w.-]{32,64}"),
    ("supabase token", "sbp_", r"sbp_[0-9a-f]{40}"),
    ("atlassian token", "ATATT3", r"ATATT3[\w=-]{100,400}"),
    ("age key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{58}"),
    ("password hash", "$2a$ $2b$ $2y$", r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}"),
    (
        "password hash",
        "$1$ $5$ $6$",
        r"\$[156]\$(?:rounds=\d{1,9}\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{22,86}",
    ),
    ("private key", "Private-Lines:", r"Private-Lines: \d{1,4}\r?\n([A-Za-z0-9+/=\r\n]{20,20000})"),
    ("slack token", "xox", r"xox[abceoprs](?:\.xox[a-z])?-[\w-]{10,500}"),
    ("slack token", "xapp-", r"xapp-\d-[\w-]{10,500}"),
    ("slack webhook", "hooks.slack.com/", r"hooks\.slack\.com/([a-z]{2,20}/[\w/]{20,200})"),
    ("stripe key", "sk_live_ sk_test_ rk_live_ rk_test_", r"[sr]k_(?:live|test)_[A-Za-z0-9]{10,300}"),
    ("stripe key", "whsec_", r"whsec_[A-Za-z0-9+/=]{20,300}"),
    ("google key", "AIza", r"AIza[\w-]{35}(?![\w-])"),
    ("google key", "ya29.", r"ya29\.[\w.-]{20,2000}"),
    ("google key", "GOCSPX-", r"GOCSPX-[\w-]{20,100}"),
    ("npm token", "npm_", r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("pypi token", "pypi-AgE", r"pypi-AgE[\w-]{50,1000}"),
    ("hugging face token", "hf_", r"hf_[A-Za-z0-9]{30,100}(?![A-Za-z0-9])"),
    (
        "jwt",
        "eyJ",
        r"(?<![\w-])eyJ[\w-]{8,20000}\.(?:eyJ[\w-]{4,20000}(?:\.[\w-]{6,20000})?|(?:[\w-]{0,20000}\.){3}[\w-]{6,200})",
    ),
    (
        "private key",
        "-----BEGIN",
        r"-----BEGIN(?: [A-Z0-9]{1,20}){0,4} PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?!-----END)(?:\\{1,8}[nrt]|[A-Za-z0-9+/=\s:,.>|-])){0,20000}(?:-----END[A-Z0-9 ]{1,80}-----)?",
    ),
)
_SEARCHES_IN_ANY_CASE = _searches(
    ("bearer token", "bearer", r"(?i:bearer)[ \t]{1,4}(?=\S{0,60}\d)([\w.~+/=-]{16,4000})"),
    ("credentials", "basic", r"(?i:basic)[ \t]{1,4}([\w+/-]{4,1000}={0,2})(?![\w+/=-])"),
    ("password", "://", r"://[^\s/:@\"'<>\\]{0,200}:([^\s/\"'<>?#\\]{1,200})@"),  # in a URL
    ("password", "://", r"://[^\s/:@\"'<>\\]{1,200}:(?!\d{1,5}[/?#])([^\s\"'<>?\\@]{1,200})@(?=[\w\[])"),
    ("secret", "://", r"://((?=[A-Za-z_-]{0,60}\d)[\w-]{20,200})@"),
    ("secret", "?key= &key=", r"[?&](?i:key)=((?=[A-Za-z-]{0,60}\d)[A-Za-z0-9-]{24,200})(?![\w])"),
    ("secret", "_pat", r"(?i:_pat)[\"']?[ \t]{0,4}[=:][ \t]{0,4}[\"']?([A-Za-z0-9]{40,90})(?![A-Za-z0-9])"),
    (
        "authorization",
        "authorization",
        r"(?i:authorization)[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?(?i:token[ \t]{1,4}|apikey[ \t]{1,4})?"
        r"((?=[A-Za-z_-]{0,60}\d)[\w.~+/=-]{16,4000})",
    ),
    ("cookie", "cookie:", r"(?i:cookie):[ \t]{0,4}([\w.-]{1,100}=[^\r\n\"'<>]{8,4000})"),
    (
        "password",
        "curl",
        r"(?i:curl)[ \t][^\n|;]{0,300}?-(?:u|-user)[ \t=]{1,4}[\"']?[\w.@-]{1,100}:([^\s\"']{3,200})",
    ),
    ("password", "mysql", r"(?i:mysql)[a-z]{0,8}[ \t][^\n|;&]{0,200}?[ \t]?-p([^\s\"'-][^\s\"']{3,100})"),
    (
        "password",
        "--password --passwd --token --api-key --secret --client-secret --access-token --auth-token",
        r"--[A-Za-z-]{5,14}[ =]{1,2}[\"']?((?=[^\s\"']{0,100}\d)[^\s\"'<>$&|-][^\s\"']{5,400})",
    ),
    ("password", "login", r"(?i:login)[ \t]{1,4}\S{1,100}\s{1,4}(?i:password)[ \t]{1,4}(\S{3,200})"),
    ("secret", "token", r"(?i:token)[ \t]{1,4}([0-9a-f]{40})(?![0-9A-Za-z])"),
    (
        "password",
        "password passwort",
        r"[A-Za-z]{8}[ \t]{1,2}(?i:is|ist):?[ \t]{1,2}[\"'`]?"
        r"((?=[^\s\d]{0,100}\d)(?=[^\sA-Za-z]{0,100}[A-Za-z])[^\s\"'`<>,;()]{6,200})",
    ),
    ("password", "pass=", r"(?i:pass)=((?=[^\s\"'&;]{0,100}\d)[^\s\"'&;<>(){}\[\]]{6,200})"),
    (
        "password",
        "password passwort passwd secret token api_key apikey",
        r"[A-Za-z_]{5,8}(?:>([^<>\s]{3,400})</|[*_]{0,3}:[*_]{0,3}[ \t]{0,4}`([^`\s]{3,200})`"
        r"|[ \t]{0,20}\|[ \t]{0,20}((?=[^\s|]{0,100}\d)[^\s|]{6,200})[ \t]{0,20}\|"
        r"|=&quot;([^&\s]{1,200})&quot;"
        r"|\"[ \t]{0,4},\s{0,40}\"value\"[ \t]{0,4}:[ \t]{0,4}\"([^\"\\]{3,400})\")",
    ),
)


def _one_of(words: Collection[str]) -> str:
    """An expression for any of some words, branched at each letter: one pass over a text instead of one a word."""
    tails: dict[str, list[str]] = {}
    for word in sorted(words):
        tails.setdefault(word[:1], []).append(word[1:])
    if "" in tails:
        return ""
    branches = [re.escape(letter) + _one_of(rest) for letter, rest in tails.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


# Names of fields in lower case, without separators.
_PASSWORDS = ("password", "passwd", "passphrase", "passcode", "pwd", "passwort", "kennwort")
_SECRETS = (
    "clientsecret", "secretkey", "apikey", "apisecret", "accesskey", "privatekey", "signingkey",
    "encryptionkey", "accesstoken", "authtoken", "refreshtoken", "idtoken", "sessiontoken", "apitoken",
    "bearertoken", "securitytoken", "secrettoken",
)  # fmt: skip
_KEYS = [f"{of}{s}key" for of in ("api", "access", "private", "signing", "encryption") for s in ("", *"_- ")]
_NAMES = (*_PASSWORDS, "secret", "token", *_KEYS)
_BEFORE = ("access ", "auth ", "refresh ", "id ", "session ", "bearer ", "client ", "secret ")
_ASSIGNED = re.compile(  # after such a name: its end, a sign, and a quote or a value
    r"(?P<rest>(?:[ _-]?access)?[ _-]?key)?(?:\\{0,8}[\"'])?[ \t]{0,8}(?P<sign>:=|=>|={1,3}|:)[ \t]{0,8}"
    r"(?:(?P<quote>\\{0,8}[\"'])|(?P<value>[^\s\"'`,;&<>(){}\[\]\\|]{1,400})(?P<after>[(\[]?))",
    re.ASCII | re.I,
)
_QUOTED = {q: re.compile(rf"(?:[^{q}\\\n]|\\.){{0,{_LONGEST}}}(?={q})") for q in "\"'"}
_LINE_ENDS = re.compile(r"[ \t]{0,8}(?:[\r\n]|\Z)")
_CODE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+\Z")
_NO_VALUES = frozenset(
    {
        "none", "null", "nil", "true", "false", "string", "str", "text", "token", "password", "secret",
        "passwd", "undefined", "required", "optional", "int", "integer", "number", "bool", "boolean",
        "bytes", "any", "object", "self", "varchar", "hidden", "redacted", "masked", "yes", "no",
    }
)  # fmt: skip
_TEMPLATE = re.compile(
    r"\$\{?[A-Za-z_]\w*\}?|\{\{?.*\}\}?|<.*>|%(?:\(\w*\))?s|%\w+%|\(\w+\)|\+ ?\w+[(.].*|[,)].*|[*•.xX_ -]+"
    r"|\[redacted: [a-z0-9_ ]{1,40}\]",
    re.S,
)

_WORDS = {word for word, _, _ in _SEARCHES}
_WORDS_IN_ANY_CASE = {*_NAMES, *(word for word, _, _ in _SEARCHES_IN_ANY_CASE)}
_LONGEST_WORD = max(map(len, _WORDS | _WORDS_IN_ANY_CASE))
_ANY_WORD = re.compile(_one_of(_WORDS))  # most texts have none
_ANY_WORD_IN_ANY_CASE = re.compile(_one_of(_WORDS_IN_ANY_CASE))


def secrets_in(text: str) -> list[Span]:
    """Return the spans of secrets in a text; they may overlap."""
    lowered = (text.replace("İ", "i") if "İ" in text else text).lower()
    if len(lowered) != len(text):  # no other letter changes its length
        lowered = text
    found = list(_formed(text, text, _SEARCHES)) if _has(text, _ANY_WORD) else []
    if _has(lowered, _ANY_WORD_IN_ANY_CASE):
        found += _formed(text, lowered, _SEARCHES_IN_ANY_CASE)
        found += _named(text, lowered)
    return found


def known_form(text: str) -> str | None:
    """The kind of the first secret with a fixed beginning (a provider's key or token) in a text, or None."""
    found = _formed(text, text, _SEARCHES) if _has(text, _ANY_WORD) else ()
    return next((kind for _, _, kind in found), None)


def named_secret(name: str, value: object, *, sure: bool = True) -> str | None:
    """The kind of secret that a field's value is, or None; ``sure``: it can be no word of a program or sentence."""
    plain = re.sub(r"[^a-z0-9]", "", name[-60:].lower())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "password" if plain.endswith(_PASSWORDS) else None
    if not isinstance(value, str) or not _is_value(value):
        return None
    if plain.endswith(_PASSWORDS):
        return "password"
    if any(c.isspace() for c in value):
        return None
    if plain.endswith(_SECRETS):
        is_secret = len(value) >= 8 and (sure or _is_random(value))
    else:
        is_named = plain.endswith("secret") or plain == "token" or name.endswith("TOKEN")
        is_secret = is_named and len(value) >= 20 and _is_random(value)
    return "secret" if is_secret else None


def _has(text: str, words: re.Pattern[str]) -> bool:
    """Whether a text has one of some words. Other threads can run in between, however long the text is."""
    return any(words.search(text, at, at + _PIECE + _LONGEST_WORD) for at in range(0, len(text), _PIECE))


def _formed(text: str, where: str, searches: Sequence[_Search]) -> Iterator[Span]:
    for word, kind, pattern in searches:
        at = where.find(word)
        while at >= 0:
            found = pattern.match(text, at) if word in _ANYWHERE or _begins(text, at) else None
            if found is not None and _is_meant(kind, found[found.lastindex or 0]):
                yield *found.span(found.lastindex or 0), kind
            at = where.find(word, max(at + len(word), found.end() if found else 0))


def _is_meant(kind: str, secret: str) -> bool:
    if kind == "credentials":  # name:password in base64, not a word of a sentence
        try:
            return b":" in base64.b64decode(secret + "=" * (-len(secret) % 4), validate=True)
        except ValueError:
            return False
    return _is_value(secret)


def _begins(text: str, at: int) -> bool:
    """Whether a secret may begin at this position: not inside a word."""
    before = text[at - 1 : at]
    if before in ("n", "r", "t") and text[at - 2 : at - 1] == "\\":
        return True  # after an escaped line end
    return not (before.isascii() and before.isalnum())


def _named(text: str, lowered: str) -> Iterator[Span]:
    """Values after a name: ``password=…``, ``"api_key": "…"``."""
    for word in _NAMES:
        at = lowered.find(word)
        while at >= 0:
            end = at + len(word)
            if found := _ASSIGNED.match(text, end):
                start, stop = _value_of(text, found)
                name = _name_before(text, at) + text[at:end] + (found["rest"] or "")
                sure = found["quote"] is not None
                kind = named_secret(name, text[start:stop], sure=sure) if stop >= 0 else None
                if kind is not None:
                    yield start, stop, kind
                end = max(end, found.end("quote" if sure else "value"))
            at = lowered.find(word, end)


def _value_of(text: str, found: re.Match[str]) -> tuple[int, int]:
    """The span of an assigned value. The end is -1 without a value, and for a word of a program or a sentence."""
    quote, start = found["quote"], found.end()
    if quote is None:
        return found.start("value"), found.end("value") if _is_loose(text, found) else -1
    if len(quote) > 1:  # escaped: the value ends at the next quote that is escaped alike
        return start, text.find(quote, start, start + _LONGEST)
    quoted = _QUOTED[quote].match(text, start)
    return start, quoted.end() if quoted else -1


def _name_before(text: str, at: int) -> str:
    """The beginning of a field's name, before the word at a position."""
    start = at
    while at - start < 30 and start and (text[start - 1].isalnum() or text[start - 1] in "_-"):
        start -= 1
    words = text[max(0, at - 8) : at] if start == at else ""
    return words if words.lower().endswith(_BEFORE) else text[start:at]


def _is_loose(text: str, found: re.Match[str]) -> bool:
    """Whether the unquoted text after a name is a value, not a word of a program or a sentence."""
    value = found["value"]
    if len(value) < 3 or found["after"] or "://" in value or _CODE.match(value):
        return False
    if re.sub(r"[^a-z0-9]", "", value.lower()).endswith(_PASSWORDS):  # password=new_password
        return False
    is_sentence = found["sign"] == ":" and value.isalpha()
    return not is_sentence or _LINE_ENDS.match(text, found.end("value")) is not None


def _is_value(value: str) -> bool:
    bare = value.strip()
    return bool(bare) and bare.lower() not in _NO_VALUES and not _TEMPLATE.fullmatch(bare)


def _is_random(value: str) -> bool:
    """Whether letters and digits, or upper and lower case, are mixed as in keys."""
    if any(c.isdigit() for c in value):
        return any(c.isalpha() for c in value)
    return len(value) >= 16 and not value.islower() and not value.isupper() and value.isalnum()
