"""Other load tools beside ours, one small adapter each: how it is called, and its raw stamps as rows like ours."""
