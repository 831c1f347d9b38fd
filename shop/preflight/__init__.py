"""Will tonight work? Small checks of settings, servers and a sale, each with a sentence that says what to do."""
