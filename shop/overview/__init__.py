"""The overview of the admin while a sale runs: is it selling, is it right, must an operator act?"""
