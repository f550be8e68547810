"""The admin pages of API tokens. Staff make and revoke their own tokens, and with a permission those of all users.

The text of a new token is shown once, on the page that answers the form. To make or to revoke a token adds an entry to
the admin's log.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone

from replsite.api.models import ApiToken
from replsite.api.tokens import MOST_DAYS, make_token, revoke_token
from streams.admin.base import ReadOnlyAdmin

ADD, CHANGE, MANAGE = "replsite_api.add_apitoken", "replsite_api.change_apitoken", "replsite_api.manage_apitokens"


class TokenForm(forms.Form):
    """The form of a new token."""

    name = forms.CharField(max_length=200, help_text="what it is for, such as: nightly purge on build-2")
    days = forms.IntegerField(min_value=1, max_value=MOST_DAYS, initial=30, help_text="it ends after so many days")
    read_only = forms.BooleanField(required=False, help_text="it may only read, whatever its user may")

    def __init__(self, *args: Any, maker: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._maker = maker
        if maker.has_perm(MANAGE):
            text = "the name of the staff user for whom it acts; empty: you"
            self.fields["user"] = forms.CharField(required=False, max_length=150, help_text=text)

    def clean_user(self) -> Any:
        """Returns the user whose name was entered, or None for an empty field.

        Refuses a user who has permissions that the maker of the token lacks.
        """
        name = self.cleaned_data["user"]
        users = get_user_model()._default_manager.filter(is_active=True, is_staff=True)
        found = users.filter(**{get_user_model().USERNAME_FIELD: name}).first() if name else None
        if name and found is None:
            raise forms.ValidationError("There is no active staff user of this name.")
        # The maker sees the token's text, and could act with it.
        may_act = found is None or (
            self._maker.is_superuser or (not found.is_superuser and self._maker.has_perms(found.get_all_permissions()))
        )
        if not may_act:
            raise forms.ValidationError("This user has permissions that you lack, so you cannot make a token for them.")
        return found


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """The admin pages of API tokens."""

    ordering = ("-pk",)
    list_display = ("name", "user", "hint", "word", "rights", "expires_at", "last_used_at")
    list_select_related = ("user",)
    fields = (
        "name", "user", "hint", "word", "rights", "created_at", "expires_at", "revoked_at", "last_used_at",
    )  # fmt: skip
    readonly_fields = ("word", "rights")
    change_list_template = "api/tokens.html"
    change_form_template = "api/token.html"

    @admin.display(description="state")
    def word(self, token: ApiToken) -> str:
        if token.revoked_at is not None:
            return "revoked"
        return "expired" if token.expires_at <= timezone.now() else "valid"

    @admin.display(description="rights")
    def rights(self, token: ApiToken) -> str:
        return "read only" if token.read_only else "as its user"

    def get_queryset(self, request: HttpRequest) -> Any:
        """Returns the tokens that the viewer may see: all tokens with the permission ``MANAGE``, else the viewer's own."""
        found = super().get_queryset(request)
        return found if request.user.has_perm(MANAGE) else found.filter(user=request.user.pk)

    def get_urls(self) -> list[URLPattern]:
        """Returns the paths of the forms to make and to revoke a token, followed by the paths of Django's own pages."""
        wrap = self.admin_site.admin_view
        more = [
            path("make/", wrap(self.make_view), name="replsite_api_apitoken_make"),
            path("<int:number>/revoke/", wrap(self.revoke_view), name="replsite_api_apitoken_revoke"),
        ]
        return [*more, *super().get_urls()]

    def make_view(self, request: HttpRequest) -> HttpResponse:
        """Shows the form of a new token. When the form is sent, makes the token and shows its text once."""
        if not request.user.has_perm(ADD):
            raise PermissionDenied
        form = TokenForm(request.POST if request.method == "POST" else None, maker=request.user)
        if not (form.is_bound and form.is_valid()):
            return self._page(request, "api/make.html", title="Make a token", form=form)
        given = form.cleaned_data
        user = given.get("user") or request.user
        token, text = make_token(user, given["name"], given["days"], read_only=given["read_only"])
        self.log_addition(request, token, f"Made a token for {user.get_username()} until {token.expires_at:%Y-%m-%d}.")
        response = self._page(request, "api/made.html", title="The new token", token=token, text=text)
        response["Cache-Control"] = "no-store"
        return response

    def revoke_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Asks for confirmation, then revokes the token."""
        if not request.user.has_perm(CHANGE):
            raise PermissionDenied
        token = self.get_queryset(request).filter(pk=number).first()
        if token is None:
            raise Http404("There is no such token.")
        if request.method != "POST":
            return self._page(request, "api/revoke.html", title=f"Revoke {token.name}?", token=token)
        if revoke_token(token):
            self.log_change(request, token, "Revoked.")
            messages.success(request, "It is revoked: requests with it are refused from now on.")
        return HttpResponseRedirect(reverse("admin:replsite_api_apitoken_changelist"))

    def _page(self, request: HttpRequest, template: str, **context: Any) -> TemplateResponse:
        everywhere = self.admin_site.each_context(request)
        return TemplateResponse(request, template, {**everywhere, "opts": self.opts, **context})
