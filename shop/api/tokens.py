"""API views that issue, refresh and end tokens."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import authenticate
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.accounts import tokens
from shop.api.errors import WrongCredentials
from shop.api.requests import account_of, json_object


class CredentialsSerializer(serializers.Serializer[Any]):
    username = serializers.CharField(write_only=True)
    password = serializers.CharField(write_only=True, trim_whitespace=False)


class RefreshSerializer(serializers.Serializer[Any]):
    refresh = serializers.CharField(write_only=True)


class AccessSerializer(serializers.Serializer[Any]):
    access = serializers.CharField()


class TokensSerializer(AccessSerializer):
    refresh = serializers.CharField()


class ObtainTokens(APIView):
    """Log-in with name and password."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(request=CredentialsSerializer, responses=TokensSerializer)
    def post(self, request: Request) -> Response:
        """Get an access token and a refresh token. Wrong passwords are limited per account and per IP address."""
        body = CredentialsSerializer(data=json_object(request))
        body.is_valid(raise_exception=True)
        user: Any = authenticate(request, **body.validated_data)
        if user is None:
            raise WrongCredentials("There is no active account with this name and password.")
        return Response(tokens.issue(user))


class RefreshTokens(APIView):
    """Exchange of a refresh token for a new access token."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(request=RefreshSerializer, responses=AccessSerializer)
    def post(self, request: Request) -> Response:
        """Get a new access token for a refresh token."""
        body = RefreshSerializer(data=json_object(request))
        body.is_valid(raise_exception=True)
        return Response(tokens.refresh(body.validated_data["refresh"]))


class SignOutEverywhere(APIView):
    """The end of all refresh tokens and browser sessions of the caller."""

    @extend_schema(request=None, responses={204: OpenApiResponse(description="All sessions have ended.")})
    def post(self, request: Request) -> Response:
        """End all refresh tokens of the caller at once. Access tokens can still place orders until they expire."""
        tokens.sign_out_everywhere([account_of(request)])
        return Response(status=204)
