"""Refuses forms that are expensive to read or unreadable, before Django or a view reads them.

Django checks a form's CSRF token before it looks at the user, so it parses the forms of anonymous clients, too. A form of
2.4 MB that consists of percent signs takes seven seconds and 460 MB. During these seconds the event loop hardly runs.
Forms of this site are short. A form without a length is refused, because nothing bounds the form before it is read.

Django answers a form in another encoding than UTF-8 with an error page, and reads the form again for that page. The
second reading fails again, with a traceback in the log. If the encoding is none of texts, such as ``hex``, the status is 500.
"""

from __future__ import annotations

from http import HTTPStatus

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

#: The longest form of a user that is logged in. The longest texts of our forms have 10,000 characters of up to 12 bytes.
LONGEST_FORM_BYTES = 256 * 1024
#: The longest form of any other client. It can only log in.
LONGEST_FORM_OF_STRANGER_BYTES = 16 * 1024
_FORMS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})


class FormLimits(MiddlewareMixin):
    """Django middleware that refuses forms that are too long, without a length, or in another encoding than UTF-8.

    It must come after the middleware that finds the user.
    """

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        """Returns the answer to a form that is refused."""
        refused = _refused(request) if request.content_type in _FORMS else None
        return None if refused is None else HttpResponse(refused.phrase, status=refused)


def _refused(request: HttpRequest) -> HTTPStatus | None:
    if (request.encoding or "utf-8").lower() != "utf-8":
        return HTTPStatus.BAD_REQUEST
    length = request.META.get("CONTENT_LENGTH") or ""
    if not length.isdecimal():
        return HTTPStatus.LENGTH_REQUIRED
    if int(length) <= LONGEST_FORM_OF_STRANGER_BYTES:
        return None
    is_too_long = int(length) > LONGEST_FORM_BYTES or not request.user.is_authenticated
    return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_too_long else None
