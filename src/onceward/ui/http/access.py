"""Who comes, and from where: credentials, sessions of browsers, and what a foreign page may not do (G23)."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from onceward.core.canon import sha256_hex
from onceward.errors import OncewardError
from onceward.people.tokens import bearer_of
from onceward.serving import Service

COOKIE: Final = "onceward_{port}"
"""Browsers keep cookies by machine, whatever the port: each server has one of its own."""
CSRF: Final = "x-onceward-csrf"
CODE_SECONDS: Final = 300
SESSION_SECONDS: Final = 12 * 3600
TRIES: Final = 10
"""How often somebody may try to sign in within a minute, all together."""


class HttpRefused(OncewardError):
    """No, or no good, credential; HTTP's own status for it."""

    code = "PERMISSION_DENIED"
    status = 401

    @property
    def http_status(self) -> int:
        return self.status


class Unfit(OncewardError):
    """Something that HTTP has a word of its own for."""

    code = "INVALID_CONFIG"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self._status = status

    @property
    def http_status(self) -> int:
        return self._status


class ServerBusy(HttpRefused):
    status = 503
    code = "LOCK_CONFLICT"


class TooMany(HttpRefused):
    status = 429
    code = "TRANSFORM_RATE_LIMIT"


class Caller(msgspec.Struct, frozen=True):
    """Whoever was let in."""

    principal: str
    session: str = ""
    """The hash of a browser's cookie; empty for programs."""
    csrf: str = ""
    token: str = ""
    """What let them in: who it is taken from is out."""


class BrowserSession(msgspec.Struct):
    principal: str
    csrf: str
    until: float
    token: str


class Doors:
    """Every way to be let in, all of them gone with this process."""

    def __init__(
        self, service: Service, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service, self._clock = service, clock
        self.cookie = COOKIE.format(port=port)
        self._codes: dict[str, tuple[str, float, str]] = {}
        self._sessions: dict[str, BrowserSession] = {}
        self._failures: list[float] = []
        self._mutex = threading.Lock()
        self._secret = service.workspace.sources.secret
        self.local = f"owl_{self._secret()}"
        """The token of whoever runs this server: given to their processes at a socket, never written to a file;
        another one after every start."""

    @property
    def sessions(self) -> int:
        """How many browsers are in."""
        with self._mutex:
            return sum(one.until > self._clock() for one in self._sessions.values())

    def code_for(self, principal: str, token: str) -> str:
        """A code that lets somebody's browser in, once, soon; for as long as the token is good that they came with."""
        code = self._secret()[:48]
        with self._mutex:
            now = self._clock()
            self._codes = {kept: found for kept, found in self._codes.items() if found[1] > now}
            self._codes[sha256_hex(code.encode())] = (principal, now + CODE_SECONDS, token)
        return code

    def sign_in(self, code: str, token: str) -> tuple[str, BrowserSession]:
        """A browser's session, for a code or a token; answers the cookie's value."""
        token = self._redeem(code) if code else token
        principal = self._bearer(token)
        if principal is None:
            self._count_failure()
            raise HttpRefused("the code or token is invalid or has expired")
        value = self._secret()
        session = BrowserSession(principal, self._secret(), self._clock() + SESSION_SECONDS, token)
        with self._mutex:
            now = self._clock()
            self._sessions = {kept: one for kept, one in self._sessions.items() if one.until > now}
            self._sessions[sha256_hex(value.encode())] = session
        return value, session

    def sign_out(self, caller: Caller) -> None:
        with self._mutex:
            self._sessions.pop(caller.session, None)

    def caller(self, authorization: str, cookie: str) -> Caller | None:
        """Who comes with these; None if they come with nothing. HttpRefused if with something that is not good."""
        if authorization:
            kind, _, token = authorization.partition(" ")
            principal = self._bearer(token.strip()) if kind.lower() == "bearer" else None
            if principal is None:
                raise HttpRefused("the token is invalid or has expired")
            return self._with_a_role(Caller(principal, token=token.strip()))
        if not cookie:
            return None
        hashed = sha256_hex(cookie.encode())
        with self._mutex:
            found = self._sessions.get(hashed)
        if (
            found is None
            or found.until <= self._clock()
            or self._bearer(found.token) != found.principal
        ):
            raise HttpRefused("the session is over; sign in again")
        return self._with_a_role(Caller(found.principal, hashed, found.csrf, found.token))

    def still(self, caller: Caller | None) -> bool:
        """Whether somebody who came may still be here."""
        if caller is None:
            return False
        with self._mutex:
            known = not caller.session or caller.session in self._sessions
        return (
            known
            and self._bearer(caller.token) == caller.principal
            and self._service.has_role(caller.principal)
        )

    def _with_a_role(self, caller: Caller) -> Caller:
        if not self._service.has_role(caller.principal):
            raise Forbidden(f"{caller.principal} no longer has a role here")
        return caller

    def require_header(self, caller: Caller, csrf: str) -> None:
        """A browser shows that it is our own page that asks."""
        if caller.session and not hmac.compare_digest(
            caller.csrf.encode(), csrf.encode("utf-8", "replace")
        ):
            raise Forbidden("the request does not come from a page of this server")

    def _redeem(self, code: str) -> str:
        """The token behind a code that is still good; nothing otherwise."""
        with self._mutex:
            found = self._codes.pop(sha256_hex(code.encode("utf-8", "replace")), None)
        return found[2] if found is not None and found[1] > self._clock() else ""

    def _bearer(self, token: str) -> str | None:
        if hmac.compare_digest(token.encode("utf-8", "replace"), self.local.encode()):
            return self._service.workspace.principal
        return bearer_of(self._service.store, self._service.authority, token) if token else None

    def _count_failure(self) -> None:
        """Who guesses is told to wait; who has something good is let in meanwhile."""
        with self._mutex:
            now = self._clock()
            self._failures = [at for at in self._failures if at > now - 60]
            if len(self._failures) >= TRIES:
                raise TooMany("too many sign-in attempts; wait a minute")
            self._failures.append(now)


class Forbidden(HttpRefused):
    status = 403


class Origins:
    """Where this server is, by the names it is known under: anything else is somebody else's page."""

    def __init__(self, scheme: str, hosts: list[str]) -> None:
        self.scheme, self.hosts = scheme, {host.lower() for host in hosts}

    def objection(self, method: str, headers: Any, page: bool) -> str:
        """Why a request is not one of ours, by what its browser says of it; empty if nothing stands against it."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return "this server does not answer to that host name; add it with --name"
        if len(origins) > 1 or (
            origins and origins[0].lower() not in {f"{self.scheme}://{h}" for h in self.hosts}
        ):
            return "the request comes from a page of another site"
        site = headers.get("sec-fetch-site", "none")
        if site not in ("none", "same-origin"):
            visiting = (
                method in ("GET", "HEAD") and page and headers.get("sec-fetch-mode") == "navigate"
            )
            if not visiting:
                return "the request comes from a page of another site"
        return ""
