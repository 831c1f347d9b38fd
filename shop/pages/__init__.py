"""The storefront: the pages for buyers. They are plain HTML; their scripts use the public REST API."""
