"""An admin button that moves the closing time of a sale."""

from __future__ import annotations

from datetime import timedelta

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from unfold.decorators import action as unfold_action
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from shop.admin.checked import CheckedAdmin
from shop.admin.read_only import to_the_second
from shop.models import Sale
from shop.sales import lifecycle

MOST = 7 * 24 * 60


class ExtendForm(forms.Form):
    """The form with the minutes to add to the closing time that the page has shown."""

    minutes = forms.IntegerField(
        min_value=1,
        max_value=MOST,
        initial=10,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Minutes to add to the closing time. A sale that is over opens again for so many minutes from now.",
    )
    shown = forms.DateTimeField(widget=forms.HiddenInput)


class ExtendingAdmin(CheckedAdmin):
    """The button “Extend” on the page of a sale. It moves the closing time of the sale."""

    @unfold_action(description="Extend", url_path="extend", permissions=["change"], icon="more_time")
    def extend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form. If the form was sent, move the closing time. A form that is sent twice moves it only once."""
        sale = self.get_object(request, object_id)
        if sale is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        form = ExtendForm(request.POST or None, initial={"shown": sale.closes_at.isoformat()})
        if request.method == "POST" and form.is_valid():
            by = timedelta(minutes=form.cleaned_data["minutes"])
            try:
                with transaction.atomic():
                    problems = lifecycle.extend(sale.pk, by, closes_at=form.cleaned_data["shown"])
            except OverflowError:
                problems = ["It would close after the year 9999."]
            if problems:
                self.message_user(request, f"{sale} was not extended. {' '.join(problems)}", messages.WARNING)
            else:
                closes = to_the_second(Sale.objects.get(pk=sale.pk).closes_at)
                self.log_change(request, sale, f"Extended until {closes}.")
                self.message_user(request, f"{sale} is open until {closes}.", messages.SUCCESS)
            return redirect("admin:shop_sale_change", sale.pk)
        title = f"Extend “{sale}”, which closes at {to_the_second(sale.closes_at)}"
        context = {**self.admin_site.each_context(request), "title": title, "form": form, "sale": sale}
        return render(request, "shop/extend.html", context)
