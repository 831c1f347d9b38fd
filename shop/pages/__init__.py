"""The storefront: what a buyer sees. Pages are plain HTML; their scripts use the REST API as any client does."""
