"""Pages of the Streamlit app."""
