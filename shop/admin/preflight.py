"""The admin page that shows the preflight checks of a sale, of the settings and of the servers."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from unfold.decorators import action as unfold_action

from shop.admin.checked import CheckedAdmin
from shop.preflight import run
from shop.preflight.finding import worst


class PreflightAdmin(CheckedAdmin):
    """The button “Preflight” on the page of a sale. It runs the preflight checks of the sale and of the shop."""

    @unfold_action(description="Preflight", url_path="preflight", permissions=["view"], icon="checklist")
    def preflight(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Run the checks of `manage.py preflight` in this web process, with its settings, and show the results."""
        sale = self.get_object(request, object_id)
        if sale is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        groups = [(str(sale), run.of_sale(sale)), ("The shop", run.of_shop())]
        context = {
            **self.admin_site.each_context(request),
            "title": f"Preflight of {sale}",
            "sale": sale,
            "groups": groups,
            "level": worst([finding for _, findings in groups for finding in findings]),
        }
        return render(request, "shop/preflight.html", context)
